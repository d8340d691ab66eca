#include "cache/message_fields.h"

#include <algorithm>

#include "cache/message_schema.h"

namespace onnx_ai_rt {
namespace {

// The largest number of onnx.TensorProto.DataType. It is a closed enum: a number beyond is an unknown field to
// protobuf.
constexpr int32_t kLastDataType = 28;

void AddInt32(TensorFields* fields, uint64_t varint) {
  const int32_t value = static_cast<int32_t>(varint);
  if (fields->int32_count++ == 0) {
    fields->int32_lowest = fields->int32_highest = value;
  } else {
    fields->int32_lowest = std::min(fields->int32_lowest, value);
    fields->int32_highest = std::max(fields->int32_highest, value);
  }
}

template <typename F>
void ForEachPacked(const WireField& field, const F& use) {
  if (field.type == WireType::kVarint) return use(field.varint);
  WireReader numbers(field.bytes, 0);
  while (!numbers.AtEnd()) use(numbers.ReadVarint());
}

// One switch for all field and wire types: a known number with another wire type is an unknown field.
constexpr uint32_t Key(uint32_t number, WireType type) { return number << 3 | static_cast<uint32_t>(type); }

void ReadTensor(ByteSpan content, int depth, TensorFields* fields) {
  WireReader reader = Nested(content, depth);
  WireField field;
  fields->present = true;
  while (reader.Next(&field)) {
    if (field.number > 16) continue;
    switch (Key(field.number, field.type)) {
      case Key(1, WireType::kVarint):
      case Key(1, WireType::kBytes):
        ForEachPacked(field, [&](uint64_t dim) { fields->shape.Append(static_cast<int64_t>(dim)); });
        break;
      case Key(2, WireType::kVarint): fields->data_type = static_cast<int32_t>(field.varint); break;
      case Key(4, WireType::kFixed32):
      case Key(4, WireType::kBytes):
        CheckField(kTensorSchema, field, reader.depth());
        if (field.bytes.size == 0) break;
        fields->float_count += field.bytes.size / 4;
        fields->float_piece = field.bytes;
        ++fields->float_pieces;
        break;
      case Key(5, WireType::kVarint):
      case Key(5, WireType::kBytes): ForEachPacked(field, [&](uint64_t value) { AddInt32(fields, value); }); break;
      case Key(6, WireType::kBytes):
      case Key(7, WireType::kVarint):
      case Key(10, WireType::kFixed64):
      case Key(11, WireType::kVarint): ++fields->other_count; break;
      case Key(7, WireType::kBytes):
      case Key(10, WireType::kBytes):
      case Key(11, WireType::kBytes):
        CheckField(kTensorSchema, field, reader.depth());
        if (field.bytes.size != 0) ++fields->other_count;
        break;
      case Key(8, WireType::kBytes):
        fields->has_name = true;
        fields->name = field.bytes;
        break;
      case Key(9, WireType::kBytes):
        fields->has_raw = true;
        fields->raw = field.bytes;
        break;
      case Key(12, WireType::kBytes):
        fields->has_doc = true;
        fields->doc = field.bytes;
        break;
      case Key(14, WireType::kVarint):
        if (static_cast<uint32_t>(field.varint) <= 1) fields->data_location = static_cast<int32_t>(field.varint);
        break;
      default: CheckField(kTensorSchema, field, reader.depth());
    }
  }
  if (fields->body.data != nullptr && fields->bodies.empty()) fields->bodies.push_back(fields->body);
  if (!fields->bodies.empty()) fields->bodies.push_back(content);
  fields->body = content;
}

void ReadDimension(ByteSpan content, int depth, LogicalTypeFields* fields) {
  WireReader reader = Nested(content, depth);
  WireField field;
  bool has_value = false;
  int64_t value = 0;
  while (reader.Next(&field)) {
    if (field.number == 1 && field.type == WireType::kVarint) {
      has_value = true;
      value = static_cast<int64_t>(field.varint);
    } else if (field.number == 2 && field.type == WireType::kBytes) {
      has_value = false;  // dim_param: the other member of the oneof
    }
  }
  fields->concrete &= has_value;
  fields->shape.Append(value);
}

void ReadTensorType(ByteSpan content, int depth, LogicalTypeFields* fields) {
  WireReader reader = Nested(content, depth);
  WireField field;
  while (reader.Next(&field)) {
    if (field.number == 1 && field.type == WireType::kVarint) {
      fields->elem_type = static_cast<int32_t>(field.varint);
    } else if (field.number == 2 && field.type == WireType::kBytes) {
      fields->has_shape = true;
      WireReader shape = Nested(field.bytes, reader.depth());
      WireField dim;
      while (shape.Next(&dim)) {
        if (dim.number == 1 && dim.type == WireType::kBytes) ReadDimension(dim.bytes, shape.depth(), fields);
      }
    }
  }
}

void ReadLogicalType(ByteSpan content, int depth, LogicalTypeFields* fields) {
  WireReader reader = Nested(content, depth);
  WireField field;
  fields->present = true;
  while (reader.Next(&field)) {
    if (field.type != WireType::kBytes) continue;
    switch (field.number) {
      case 1:
      case 4:
      case 5:
      case 7:
      case 8:
      case 9:
        if (fields->kind != field.number) {
          *fields = {};
          fields->present = true;
          fields->kind = field.number;
        }
        if (field.number == 1) {
          ReadTensorType(field.bytes, reader.depth(), fields);
        } else {
          CheckField(kTypeSchema, field, reader.depth());
        }
        break;
      default: break;
    }
  }
}

void ReadAffine(ByteSpan content, int depth, AffineFields* fields) {
  WireReader reader = Nested(content, depth);
  WireField field;
  while (reader.Next(&field)) {
    if (field.number > 6) continue;
    switch (Key(field.number, field.type)) {
      case Key(1, WireType::kVarint):
        if (static_cast<uint32_t>(field.varint) <= static_cast<uint32_t>(kLastDataType)) {
          fields->has_storage_type = true;
          fields->storage_type = static_cast<int32_t>(field.varint);
        } else {
          fields->unknown_storage_type = true;
          fields->unknown_storage_value = field.varint;
        }
        break;
      case Key(2, WireType::kBytes): ReadTensor(field.bytes, reader.depth(), &fields->scale); break;
      case Key(3, WireType::kBytes): ReadTensor(field.bytes, reader.depth(), &fields->zero_point); break;
      case Key(4, WireType::kVarint):
        fields->has_axis = true;
        fields->axis = static_cast<int64_t>(field.varint);
        break;
      case Key(5, WireType::kVarint):
        fields->has_block_size = true;
        fields->block_size = field.varint;
        break;
      case Key(6, WireType::kVarint):
        fields->has_signed = true;
        fields->signed_storage = field.varint != 0;
        break;
      default: break;
    }
  }
}

void ReadEncoded(ByteSpan content, int depth, EncodedFields* fields) {
  WireReader reader = Nested(content, depth);
  WireField field;
  while (reader.Next(&field)) {
    if (field.number > 9) continue;
    switch (Key(field.number, field.type)) {
      case Key(1, WireType::kBytes):
        if (fields->layout != 1) fields->affine = {};
        fields->layout = 1;
        ReadAffine(field.bytes, reader.depth(), &fields->affine);
        break;
      case Key(2, WireType::kBytes):
        fields->layout = 2;
        CheckMessage(kLeafSchema, field.bytes, reader.depth());
        break;
      case Key(3, WireType::kBytes): ReadLogicalType(field.bytes, reader.depth(), &fields->logical_type); break;
      case Key(4, WireType::kBytes):
        fields->has_raw = true;
        fields->raw = field.bytes;
        break;
      case Key(5, WireType::kBytes): CheckMessage(kLeafSchema, field.bytes, reader.depth()); break;
      case Key(6, WireType::kVarint):
        if (static_cast<uint32_t>(field.varint) <= 1) fields->data_location = static_cast<int32_t>(field.varint);
        break;
      case Key(7, WireType::kBytes):
        fields->has_name = true;
        fields->name = field.bytes;
        break;
      case Key(8, WireType::kBytes):
        fields->has_doc = true;
        fields->doc = field.bytes;
        break;
      default: break;
    }
  }
}

}  // namespace

bool IsUnknownBlockField(const WireField& field) {
  if (field.number <= 2) return field.type != WireType::kVarint;
  return field.number > 6 || field.type != WireType::kBytes;
}

void ReadBlock(ByteSpan content, int depth, BlockFields* fields) {
  WireReader reader = Nested(content, depth);
  WireField field;
  while (reader.Next(&field)) {
    if (IsUnknownBlockField(field)) continue;
    if (field.number == kStartField) {
      fields->start = static_cast<int64_t>(field.varint);
      ++fields->start_count;
    } else if (field.number == kLengthField) {
      fields->length = static_cast<int64_t>(field.varint);
    } else {
      SideFields& side = fields->sides[field.number >= kDenseField[1]];
      if (side.member != field.number) {
        side.member = field.number;
        side.encoded = field.number == kEncodedField[0] || field.number == kEncodedField[1];
        if (side.encoded) {
          side.value = {};
        } else {
          side.tensor = {};
        }
      }
      if (side.encoded) {
        ReadEncoded(field.bytes, reader.depth(), &side.value);
      } else {
        ReadTensor(field.bytes, reader.depth(), &side.tensor);
      }
    }
  }
}

}  // namespace onnx_ai_rt
