// Collects what the cache needs from the messages of a block, in place.
//
// Each Read* may be called again with another piece of the same message: pieces merge as protobuf merges them (the last
// scalar wins, repeated fields append, sub-messages merge, a oneof keeps its last member). Nothing here judges the
// values; only what is no protobuf message throws (WireError).
#pragma once

#include <cstdint>
#include <vector>

#include "cache/wire_reader.h"

namespace onnx_ai_rt {

// Dimensions up to the rank that a payload has; of further ones only the count is kept.
struct DimList {
  int64_t dims[4] = {0, 0, 0, 0};
  uint64_t rank = 0;

  void Append(int64_t dim) {
    if (rank < 4) dims[rank] = dim;
    ++rank;
  }
};

// onnx.TensorProto.
struct TensorFields {
  bool present = false;
  DimList shape;
  int32_t data_type = 0;
  int32_t data_location = 0;
  bool has_raw = false, has_name = false, has_doc = false;
  ByteSpan raw, name, doc;
  uint64_t float_count = 0, int32_count = 0, other_count = 0;  // values in float_data, int32_data, other typed fields
  uint64_t float_pieces = 0;
  ByteSpan float_piece;                         // the last piece of float_data
  int32_t int32_lowest = 0, int32_highest = 0;  // of int32_data
  std::vector<ByteSpan> bodies;  // the pieces of this message; kept where int32_data or split float_data needs it
  ByteSpan body;                 // the last piece

  uint64_t TypedCount() const { return float_count + int32_count + other_count; }
};

// onnx.TypeProto, as far as it is a tensor type.
struct LogicalTypeFields {
  bool present = false;
  uint32_t kind = 0;  // field number of the oneof's member; 1: tensor_type
  int32_t elem_type = 0;
  bool has_shape = false;
  bool concrete = true;  // all dimensions are numbers
  DimList shape;
};

struct AffineFields {
  bool has_storage_type = false;
  bool unknown_storage_type = false;  // a number that is not in onnx.TensorProto.DataType
  int32_t storage_type = 0;
  uint64_t unknown_storage_value = 0;
  TensorFields scale, zero_point;
  bool has_axis = false, has_block_size = false, has_signed = false, signed_storage = false;
  int64_t axis = 0;
  uint64_t block_size = 0;
};

struct EncodedFields {
  uint32_t layout = 0;  // field number of the oneof's member; 1: affine, 2: struct_type
  AffineFields affine;
  LogicalTypeFields logical_type;
  bool has_raw = false, has_name = false, has_doc = false;
  ByteSpan raw, name, doc;
  int32_t data_location = 0;
};

// One side of a block: member is the field number of the oneof's member within the block, 0: none. Only the part that
// belongs to it means something; the other may be left over from another block.
struct SideFields {
  uint32_t member = 0;
  bool encoded = false;
  TensorFields tensor;
  EncodedFields value;
};

struct BlockFields {
  int64_t start = 0, length = 0;
  int start_count = 0;  // how often the field is there; the last one counts
  SideFields sides[2];  // key, value

  // Makes ready for another block. Cheaper than a new object, whose parts would be cleared whether needed or not.
  void Restart() {
    start = length = 0;
    start_count = 0;
    sides[0].member = sides[1].member = 0;
  }
};

// Field numbers of PagedCacheProto and PagedCacheBlockProto.
inline constexpr uint32_t kBlocksField = 1;
inline constexpr uint32_t kStartField = 1, kLengthField = 2;
inline constexpr uint32_t kDenseField[2] = {3, 5}, kEncodedField[2] = {4, 6};  // by side: key, value

// True for a field of a block that is none of its known ones.
bool IsUnknownBlockField(const WireField& field);

void ReadBlock(ByteSpan content, int depth, BlockFields* fields);

// Calls use(int32_t) for each value of int32_data, in order.
template <typename F>
void ForEachInt32(const std::vector<ByteSpan>& bodies, const F& use) {
  for (const ByteSpan& body : bodies) {
    WireReader reader(body);
    WireField field;
    while (reader.Next(&field)) {
      if (field.number != 5) continue;
      if (field.type == WireType::kVarint) use(static_cast<int32_t>(field.varint));
      if (field.type != WireType::kBytes) continue;
      WireReader numbers(field.bytes, 0);
      while (!numbers.AtEnd()) use(static_cast<int32_t>(numbers.ReadVarint()));
    }
  }
}

// Calls use(ByteSpan) for each piece of float_data, in order.
template <typename F>
void ForEachFloatPiece(const std::vector<ByteSpan>& bodies, const F& use) {
  for (const ByteSpan& body : bodies) {
    WireReader reader(body);
    WireField field;
    while (reader.Next(&field)) {
      if (field.number == 4 && (field.type == WireType::kFixed32 || field.type == WireType::kBytes)) use(field.bytes);
    }
  }
}

}  // namespace onnx_ai_rt
