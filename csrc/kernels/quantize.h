// Payloads as they are stored (dense or affine codes), and their conversion between formats.
//
// A payload is [batch, heads, capacity, width], one row-major stream of values without padding between rows: 4-bit
// codes put the first value in the low nibble, 2-bit codes in the two lowest bits, and a row may end inside a byte.
// Nothing needs alignment: payloads lie anywhere in a serialized message.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "kernels/tensor_view.h"

namespace onnx_ai_rt {

// True for the six types that affine codes are stored in.
inline bool IsCodeType(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kUInt8 || dtype == DType::kInt4 || dtype == DType::kUInt4 ||
         dtype == DType::kInt2 || dtype == DType::kUInt2;
}

// True for the three types of dense payloads.
inline bool IsDenseType(DType dtype) {
  return dtype == DType::kFloat || dtype == DType::kHalf || dtype == DType::kBFloat16;
}

inline bool IsSignedCode(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt4 || dtype == DType::kInt2;
}

inline int32_t LowestCode(DType dtype) { return IsSignedCode(dtype) ? -(1 << (BitsOf(dtype) - 1)) : 0; }
inline int32_t HighestCode(DType dtype) { return (1 << (BitsOf(dtype) - IsSignedCode(dtype))) - 1; }

inline bool IsScale(float value) { return value > 0.0f && value <= std::numeric_limits<float>::max(); }

// Code number `index` of a packed stream.
int32_t CodeAt(const uint8_t* codes, DType dtype, int64_t index);

// Bytes of `values` stored values; values < 2^58.
inline int64_t StoredBytes(DType dtype, int64_t values) { return (values * BitsOf(dtype) + 7) / 8; }

// Where the scale and zero point of a value are. One pair for the whole payload (axis -1, the common case), else
// arrays.
struct AffineParameters {
  float first_scale = 1.0f;  // pair 0, which is the only one when axis is -1
  int32_t first_zero_point = 0;
  int axis = -1;                         // 0 to 3
  int64_t block_size = 0;                // 0: one pair per index along axis; else rank-4 parameters, blocked along it
  const uint8_t* scales = nullptr;       // with axis >= 0: little-endian floats, unaligned
  const uint8_t* zero_points = nullptr;  // packed codes of the storage type; null: all 0
  int64_t stride[4] = {0, 0, 0, 0};      // pairs to go forward per index (per block_size indices on a blocked axis)

  // True where all values of a row share one pair.
  bool UniformInRow() const { return stride[3] == 0; }

  // Number of the pair of value (b, h, t, w).
  int64_t PairOf(int64_t b, int64_t h, int64_t t, int64_t w) const {
    int64_t index[4] = {b, h, t, w};
    if (block_size > 0) index[axis] /= block_size;
    return index[0] * stride[0] + index[1] * stride[1] + index[2] * stride[2] + index[3] * stride[3];
  }
};

struct StoredPayload {
  const uint8_t* data = nullptr;
  DType dtype = DType::kUndefined;  // a dense type, or the storage type of codes
  int64_t batch = 0, heads = 0, capacity = 0, width = 0;
  AffineParameters affine;  // of codes: value = (code - zero point) * scale, in float

  bool IsAffine() const { return IsCodeType(dtype); }
  int64_t Values() const { return batch * heads * capacity * width; }
};

float ScaleOf(const AffineParameters& parameters, int64_t pair);
int32_t ZeroPointOf(const AffineParameters& parameters, DType dtype, int64_t pair);

// The destination of a conversion.
struct Encoding {
  DType dtype = DType::kUndefined;
  float scale = 1.0f;      // of codes
  int32_t zero_point = 0;  // of codes, within their range
};

enum class Conversion { kDone, kNotFinite, kOverflow };

// Rows are numbered through: row = (batch index * heads + head) * capacity + token. A range that starts at a multiple
// of kRowAlignment starts at a whole byte in every format, so that ranges can be converted in parallel.
inline constexpr int64_t kRowAlignment = 4;

// Converts the rows [first_row, last_row) of `source` into `out`, the beginning of a payload of `capacity` tokens per
// head (rows counted there). Rows of tokens below `length` are decoded and encoded; the others get the encoding of 0.
// `length` is at most both capacities. Every byte of the range is written; a last byte that is not full gets high bits
// of 0.
//
// kNotFinite: a valid row of a dense source holds NaN or infinity. kOverflow: a finite value became infinite by
// decoding or by narrowing. In both cases the output is unspecified.
Conversion ConvertRows(const StoredPayload& source, int64_t length, const Encoding& target, int64_t capacity,
                       int64_t first_row, int64_t last_row, uint8_t* out);

// Whether the values [first, last) of a dense payload are finite and stay so as `target`, without storing them.
Conversion CheckRange(const StoredPayload& dense, DType target, int64_t first, int64_t last);

// Copies `count` values from value `from` of a stream to value `to` of another one of the same type. Of the bytes that
// it shares, the bits before `to` stay and those behind the last value become 0: a stream is written in its order.
void CopyValues(DType dtype, const uint8_t* source, int64_t from, int64_t count, uint8_t* out, int64_t to);

// "NaN at batch 0, head 1, token 2, column 3", the first offending value of a range where ConvertRows did not end
// well. Slow.
std::string DescribeFailure(const StoredPayload& source, int64_t length, const Encoding& target);

// Decodes `count` values from column `column` of row (b, h, t) to floats.
void DecodeRow(const StoredPayload& source, int64_t b, int64_t h, int64_t t, int64_t column, int64_t count, float* out);

}  // namespace onnx_ai_rt
