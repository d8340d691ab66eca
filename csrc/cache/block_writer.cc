#include "cache/block_writer.h"

#include "cache/message_fields.h"
#include "cache/wire_writer.h"

namespace onnx_ai_rt {
namespace {

constexpr size_t kScaleBody = 2 + 2 + 4;      // data_type, raw_data with one float
constexpr size_t kZeroPointBody = 2 + 2 + 1;  // data_type, raw_data with one code
constexpr size_t kAffineBody = 2 + (2 + kScaleBody) + (2 + kZeroPointBody);

struct Dims {
  int64_t dims[4];
};

Dims DimsOf(const BlockSpec& spec, int side) {
  return {{spec.batch, spec.heads, spec.capacity, spec.sides[side].width}};
}

size_t ShapeBody(const Dims& dims) {
  size_t size = 0;
  for (const int64_t dim : dims.dims) size += BytesFieldSize(VarintFieldSize(static_cast<uint64_t>(dim)));
  return size;
}

size_t TensorTypeBody(const Dims& dims) { return 2 + BytesFieldSize(ShapeBody(dims)); }

// The bytes of a payload's message before the values, and behind them.
size_t BodyBefore(const BlockSpec& spec, int side, size_t values) {
  const PayloadSpec& payload = spec.sides[side];
  const Dims dims = DimsOf(spec, side);
  const size_t header = 1 + VarintSize(values);
  if (IsCodeType(payload.encoding.dtype)) {
    return BytesFieldSize(kAffineBody) + BytesFieldSize(BytesFieldSize(TensorTypeBody(dims))) + header;
  }
  size_t size = 2 + header;
  for (const int64_t dim : dims.dims) size += VarintFieldSize(static_cast<uint64_t>(dim));
  return size + (payload.has_name ? BytesFieldSize(payload.name.size) : 0);
}

size_t BodyBehind(const PayloadSpec& payload) {
  size_t size = payload.has_doc ? BytesFieldSize(payload.doc.size) : 0;
  if (IsCodeType(payload.encoding.dtype) && payload.has_name) size += BytesFieldSize(payload.name.size);
  return size;
}

void WriteTensor(const PayloadSpec& payload, const Dims& dims, size_t values, WireWriter* writer) {
  for (const int64_t dim : dims.dims) writer->VarintField(1, static_cast<uint64_t>(dim));
  writer->VarintField(2, static_cast<uint64_t>(payload.encoding.dtype));
  if (payload.has_name) writer->BytesField(8, payload.name);
  writer->BytesHeader(9, values);
  writer->Reserve(values);
  if (payload.has_doc) writer->BytesField(12, payload.doc);
}

void WriteEncoded(const PayloadSpec& payload, const Dims& dims, size_t values, WireWriter* writer) {
  const uint64_t storage_type = static_cast<uint64_t>(payload.encoding.dtype);
  const uint8_t zero_point =
      static_cast<uint8_t>(payload.encoding.zero_point & ((1 << BitsOf(payload.encoding.dtype)) - 1));
  writer->BytesHeader(1, kAffineBody);
  writer->VarintField(1, storage_type);
  writer->BytesHeader(2, kScaleBody);
  writer->VarintField(2, static_cast<uint64_t>(DType::kFloat));
  writer->BytesHeader(9, 4);
  writer->Bytes(&payload.encoding.scale, 4);
  writer->BytesHeader(3, kZeroPointBody);
  writer->VarintField(2, storage_type);
  writer->BytesHeader(9, 1);
  writer->Bytes(&zero_point, 1);

  const size_t tensor_type = TensorTypeBody(dims);
  writer->BytesHeader(3, BytesFieldSize(tensor_type));
  writer->BytesHeader(1, tensor_type);
  writer->VarintField(1, static_cast<uint64_t>(DType::kFloat));
  writer->BytesHeader(2, ShapeBody(dims));
  for (const int64_t dim : dims.dims) {
    writer->BytesHeader(1, VarintFieldSize(static_cast<uint64_t>(dim)));
    writer->VarintField(1, static_cast<uint64_t>(dim));
  }

  writer->BytesHeader(4, values);
  writer->Reserve(values);
  if (payload.has_name) writer->BytesField(7, payload.name);
  if (payload.has_doc) writer->BytesField(8, payload.doc);
}

}  // namespace

BlockLayout LayOutBlock(const BlockSpec& spec) {
  BlockLayout layout;
  layout.content =
      VarintFieldSize(static_cast<uint64_t>(spec.start)) + VarintFieldSize(static_cast<uint64_t>(spec.length));
  for (int side = 0; side < 2; ++side) {
    const PayloadSpec& payload = spec.sides[side];
    layout.payload_bytes[side] =
        StoredBytes(payload.encoding.dtype, spec.batch * spec.heads * spec.capacity * payload.width);
    const size_t values = static_cast<size_t>(layout.payload_bytes[side]);
    const size_t before = BodyBefore(spec, side, values);
    layout.bodies[side] = before + values + BodyBehind(payload);
    layout.payload_offset[side] = layout.content + 1 + VarintSize(layout.bodies[side]) + before;
    layout.content += BytesFieldSize(layout.bodies[side]);
  }
  for (const ByteSpan& field : spec.unknown) layout.content += field.size;
  layout.size = BytesFieldSize(layout.content);
  for (size_t& offset : layout.payload_offset) offset += layout.size - layout.content;
  return layout;
}

void WriteBlock(const BlockSpec& spec, const BlockLayout& layout, uint8_t* out) {
  WireWriter writer(out);
  writer.BytesHeader(kBlocksField, layout.content);
  writer.VarintField(kStartField, static_cast<uint64_t>(spec.start));
  writer.VarintField(kLengthField, static_cast<uint64_t>(spec.length));
  for (int side = 0; side < 2; ++side) {
    const PayloadSpec& payload = spec.sides[side];
    const bool encoded = IsCodeType(payload.encoding.dtype);
    const size_t values = static_cast<size_t>(layout.payload_bytes[side]);
    writer.BytesHeader(encoded ? kEncodedField[side] : kDenseField[side], layout.bodies[side]);
    (encoded ? WriteEncoded : WriteTensor)(payload, DimsOf(spec, side), values, &writer);
  }
  for (const ByteSpan& field : spec.unknown) writer.Bytes(field.data, field.size);
}

}  // namespace onnx_ai_rt
