#include "kernels/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "kernels/quantize-inl.h"

#if HWY_ONCE
namespace onnx_ai_rt {
namespace {

HWY_EXPORT(QuantizeFloats);
HWY_EXPORT(DequantizeCodes);
HWY_EXPORT(DequantizeVarying);
HWY_EXPORT(CopyFloats);
HWY_EXPORT(PromoteHalfs);
HWY_EXPORT(PromoteBFloats);
HWY_EXPORT(DemoteHalfs);
HWY_EXPORT(DemoteBFloats);
HWY_EXPORT(PackNibbles);
HWY_EXPORT(PackCrumbs);
HWY_EXPORT(UnpackNibbles);
HWY_EXPORT(UnpackCrumbs);

// Values that go through a buffer on the stack at a time; a multiple of the codes in a byte. 4 bytes each: in L1.
constexpr int64_t kTile = 1024;
// Blocks along the width that are at least so long are decoded one by one; shorter ones value by value.
constexpr int64_t kLongBlock = 16;
constexpr int64_t kPairPadding = 64;

constexpr uint32_t kInfinityBits = 0x7f800000;
// Rounding up to infinity begins at these floats.
constexpr uint32_t kHalfOverflowBits = 0x477ff000;    // 65520
constexpr uint32_t kBFloatOverflowBits = 0x7f7f8000;  // 3.3961775e38

uint8_t SignBit(DType dtype) {
  return IsSignedCode(dtype) ? static_cast<uint8_t>(1 << (BitsOf(dtype) - 1)) : uint8_t{0};
}

// Codes [index, index + n) of a packed stream to one byte each, sign-extended.
void UnpackCodes(const uint8_t* packed, DType dtype, int64_t index, int64_t n, uint8_t* codes) {
  const int64_t per_byte = 8 / BitsOf(dtype);
  if (per_byte == 1) {
    std::memcpy(codes, packed + index, static_cast<size_t>(n));
    return;
  }
  const int64_t lead = std::min(n, (per_byte - index % per_byte) % per_byte);
  int64_t i = 0;
  for (; i < lead; ++i) codes[i] = static_cast<uint8_t>(CodeAt(packed, dtype, index + i));
  const int64_t bytes = (n - i) / per_byte;
  const uint8_t* from = packed + (index + i) / per_byte;
  if (per_byte == 2) {
    HWY_DYNAMIC_DISPATCH(UnpackNibbles)(from, static_cast<size_t>(bytes), SignBit(dtype), codes + i);
  } else {
    HWY_DYNAMIC_DISPATCH(UnpackCrumbs)(from, static_cast<size_t>(bytes), SignBit(dtype), codes + i);
  }
  for (i += bytes * per_byte; i < n; ++i) codes[i] = static_cast<uint8_t>(CodeAt(packed, dtype, index + i));
}

// Writes a code into a byte whose bits from its place on are still to be written.
void PutCode(uint8_t* packed, DType dtype, int64_t index, uint8_t code) {
  const int bits = BitsOf(dtype);
  const int shift = static_cast<int>(index * bits % 8);
  uint8_t& byte = packed[index * bits / 8];
  const int kept = shift == 0 ? 0 : byte & ((1 << shift) - 1);
  byte = static_cast<uint8_t>(kept | (code & ((1 << bits) - 1)) << shift);
}

// The reverse of UnpackCodes. The bits before the first code stay, those after the last one in its byte become 0.
void PackCodes(const uint8_t* codes, DType dtype, int64_t index, int64_t n, uint8_t* packed) {
  const int64_t per_byte = 8 / BitsOf(dtype);
  if (per_byte == 1) {
    std::memcpy(packed + index, codes, static_cast<size_t>(n));
    return;
  }
  const int64_t lead = std::min(n, (per_byte - index % per_byte) % per_byte);
  int64_t i = 0;
  for (; i < lead; ++i) PutCode(packed, dtype, index + i, codes[i]);
  const int64_t bytes = (n - i) / per_byte;
  uint8_t* to = packed + (index + i) / per_byte;
  if (per_byte == 2) {
    HWY_DYNAMIC_DISPATCH(PackNibbles)(codes + i, static_cast<size_t>(bytes), to);
  } else {
    HWY_DYNAMIC_DISPATCH(PackCrumbs)(codes + i, static_cast<size_t>(bytes), to);
  }
  for (i += bytes * per_byte; i < n; ++i) PutCode(packed, dtype, index + i, codes[i]);
}

// Dense values [index, index + n) to floats.
uint32_t LoadDense(const StoredPayload& source, int64_t index, int64_t n, uint8_t* out) {
  const size_t count = static_cast<size_t>(n);
  const uint8_t* from = source.data + index * static_cast<int64_t>(BytesOf(source.dtype));
  if (source.dtype == DType::kHalf) return HWY_DYNAMIC_DISPATCH(PromoteHalfs)(from, count, out);
  if (source.dtype == DType::kBFloat16) return HWY_DYNAMIC_DISPATCH(PromoteBFloats)(from, count, out);
  return HWY_DYNAMIC_DISPATCH(CopyFloats)(from, count, out);
}

// Affine values [index, index + n) that share one pair to floats.
uint32_t LoadUniform(const StoredPayload& source, float scale, int32_t zero_point, int64_t index, int64_t n,
                     uint8_t* out) {
  const bool is_signed = IsSignedCode(source.dtype);
  if (BitsOf(source.dtype) == 8) {
    return HWY_DYNAMIC_DISPATCH(DequantizeCodes)(source.data + index, static_cast<size_t>(n), is_signed, scale,
                                                 zero_point, out);
  }
  alignas(64) uint8_t codes[kTile];
  uint32_t largest = 0;
  while (n > 0) {
    // Ends at a whole byte where more follows.
    const int64_t count = std::min(n, kTile - index % 4);
    UnpackCodes(source.data, source.dtype, index, count, codes);
    largest = std::max(largest, HWY_DYNAMIC_DISPATCH(DequantizeCodes)(codes, static_cast<size_t>(count), is_signed,
                                                                      scale, zero_point, out));
    index += count;
    n -= count;
    out += 4 * count;
  }
  return largest;
}

// Affine values of one row, columns [column, column + n), n up to kTile, whose pairs change value by value.
uint32_t LoadVarying(const StoredPayload& source, const int64_t (&place)[3], int64_t row, int64_t column, int64_t n,
                     uint8_t* out) {
  const AffineParameters& affine = source.affine;
  alignas(64) uint8_t codes[kTile];
  alignas(64) float scales[kTile + kPairPadding];
  alignas(64) int32_t zero_points[kTile + kPairPadding];
  UnpackCodes(source.data, source.dtype, row * source.width + column, n, codes);
  const int64_t first_pair = affine.PairOf(place[0], place[1], place[2], 0);
  const int64_t block = affine.axis == 3 && affine.block_size > 0 ? affine.block_size : 1;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t pair = first_pair + (column + i) / block;
    scales[i] = ScaleOf(affine, pair);
    zero_points[i] = ZeroPointOf(affine, source.dtype, pair);
  }
  std::fill_n(scales + n, kPairPadding, 0.0f);
  std::fill_n(zero_points + n, kPairPadding, 0);
  return HWY_DYNAMIC_DISPATCH(DequantizeVarying)(codes, static_cast<size_t>(n), IsSignedCode(source.dtype), scales,
                                                 zero_points, out);
}

// Affine values [index, index + n), any parameters, to floats: in pieces that share a pair as far as they go.
uint32_t LoadAffine(const StoredPayload& source, int64_t index, int64_t n, uint8_t* out) {
  const AffineParameters& affine = source.affine;
  if (affine.axis < 0) return LoadUniform(source, affine.first_scale, affine.first_zero_point, index, n, out);
  uint32_t largest = 0;
  while (n > 0) {
    const int64_t row = index / source.width;
    const int64_t column = index % source.width;
    const int64_t head = row / source.capacity;
    const int64_t place[3] = {head / source.heads, head % source.heads, row % source.capacity};
    int64_t count = std::min(n, source.width - column);
    const int64_t block = affine.axis == 3 ? affine.block_size : 0;
    if (affine.UniformInRow() || block >= kLongBlock) {
      if (!affine.UniformInRow()) count = std::min(count, block - column % block);
      const int64_t pair = affine.PairOf(place[0], place[1], place[2], column);
      const int32_t zero_point = ZeroPointOf(affine, source.dtype, pair);
      largest = std::max(largest, LoadUniform(source, ScaleOf(affine, pair), zero_point, index, count, out));
    } else {
      count = std::min(count, kTile);
      largest = std::max(largest, LoadVarying(source, place, row, column, count, out));
    }
    index += count;
    n -= count;
    out += 4 * count;
  }
  return largest;
}

uint32_t Load(const StoredPayload& source, int64_t index, int64_t n, uint8_t* out) {
  return source.IsAffine() ? LoadAffine(source, index, n, out) : LoadDense(source, index, n, out);
}

// n floats to values [index, index + n) of the destination.
uint32_t Store(const Encoding& target, const uint8_t* floats, int64_t index, int64_t n, uint8_t* out) {
  const size_t count = static_cast<size_t>(n);
  if (!IsCodeType(target.dtype)) {
    uint8_t* to = out + index * static_cast<int64_t>(BytesOf(target.dtype));
    if (target.dtype == DType::kHalf) return HWY_DYNAMIC_DISPATCH(DemoteHalfs)(floats, count, to);
    if (target.dtype == DType::kBFloat16) return HWY_DYNAMIC_DISPATCH(DemoteBFloats)(floats, count, to);
    return HWY_DYNAMIC_DISPATCH(CopyFloats)(floats, count, to);
  }
  const int32_t lowest = LowestCode(target.dtype);
  const int32_t highest = HighestCode(target.dtype);
  if (BitsOf(target.dtype) == 8) {
    return HWY_DYNAMIC_DISPATCH(QuantizeFloats)(floats, count, target.scale, target.zero_point, lowest, highest,
                                                out + index);
  }
  alignas(64) uint8_t codes[kTile];
  uint32_t largest = 0;
  while (n > 0) {
    const int64_t piece = std::min(n, kTile - index % 4);
    largest = std::max(largest, HWY_DYNAMIC_DISPATCH(QuantizeFloats)(floats, static_cast<size_t>(piece), target.scale,
                                                                     target.zero_point, lowest, highest, codes));
    PackCodes(codes, target.dtype, index, piece, out);
    floats += 4 * piece;
    index += piece;
    n -= piece;
  }
  return largest;
}

// Values [from, from + n) of the source become values [to, to + n) of the destination. Returns the largest float.
uint32_t ConvertValues(const StoredPayload& source, int64_t from, const Encoding& target, int64_t to, int64_t n,
                       uint8_t* out) {
  if (source.dtype == DType::kFloat) return Store(target, source.data + 4 * from, to, n, out);
  if (target.dtype == DType::kFloat) return Load(source, from, n, out + 4 * to);
  alignas(64) uint8_t floats[4 * kTile];
  uint32_t largest = 0;
  while (n > 0) {
    const int64_t piece = std::min(n, kTile - to % 4);
    Load(source, from, piece, floats);
    largest = std::max(largest, Store(target, floats, to, piece, out));
    from += piece;
    to += piece;
    n -= piece;
  }
  return largest;
}

// The encoding of 0 into values [index, index + n).
void FillZeros(const Encoding& target, int64_t index, int64_t n, uint8_t* out) {
  if (!IsCodeType(target.dtype)) {
    const int64_t bytes = static_cast<int64_t>(BytesOf(target.dtype));
    std::memset(out + index * bytes, 0, static_cast<size_t>(n * bytes));
    return;
  }
  const int64_t per_byte = 8 / BitsOf(target.dtype);
  const uint8_t code = static_cast<uint8_t>(target.zero_point);
  for (; n > 0 && index % per_byte != 0; ++index, --n) PutCode(out, target.dtype, index, code);
  uint8_t byte = 0;
  for (int64_t i = 0; i < per_byte; ++i) PutCode(&byte, target.dtype, i, code);
  std::memset(out + index / per_byte, byte, static_cast<size_t>(n / per_byte));
  for (int64_t i = n / per_byte * per_byte; i < n; ++i) PutCode(out, target.dtype, index + i, code);
}

uint32_t OverflowBits(DType dtype) {
  if (dtype == DType::kHalf) return kHalfOverflowBits;
  return dtype == DType::kBFloat16 ? kBFloatOverflowBits : kInfinityBits;
}

Conversion OutcomeOf(uint32_t largest, bool dense_source, DType target) {
  if (largest >= kInfinityBits && dense_source) return Conversion::kNotFinite;
  return largest >= OverflowBits(target) ? Conversion::kOverflow : Conversion::kDone;
}

}  // namespace

int32_t CodeAt(const uint8_t* codes, DType dtype, int64_t index) {
  const int bits = BitsOf(dtype);
  const int32_t code = codes[index * bits / 8] >> (index * bits % 8) & ((1 << bits) - 1);
  const int32_t sign = SignBit(dtype);
  return (code ^ sign) - sign;
}

float ScaleOf(const AffineParameters& parameters, int64_t pair) {
  if (parameters.scales == nullptr) return parameters.first_scale;
  float scale;
  std::memcpy(&scale, parameters.scales + 4 * pair, sizeof(scale));
  return scale;
}

int32_t ZeroPointOf(const AffineParameters& parameters, DType dtype, int64_t pair) {
  if (parameters.zero_points == nullptr) return parameters.first_zero_point;
  return CodeAt(parameters.zero_points, dtype, pair);
}

Conversion ConvertRows(const StoredPayload& source, int64_t length, const Encoding& target, int64_t capacity,
                       int64_t first_row, int64_t last_row, uint8_t* out) {
  const int64_t width = source.width;
  if (width == 0) return Conversion::kDone;
  // Without unused rows all rows are one run.
  const bool full = length == capacity && length == source.capacity;
  uint32_t largest = 0;
  for (int64_t row = first_row; row < last_row;) {
    const int64_t token = row % capacity;
    int64_t rows;
    if (token < length) {
      rows = std::min(last_row - row, full ? last_row - row : length - token);
      const int64_t from = (row / capacity * source.capacity + token) * width;
      largest = std::max(largest, ConvertValues(source, from, target, row * width, rows * width, out));
    } else {
      rows = std::min(last_row - row, capacity - token);
      FillZeros(target, row * width, rows * width, out);
    }
    row += rows;
  }
  return OutcomeOf(largest, !source.IsAffine(), target.dtype);
}

Conversion CheckRange(const StoredPayload& dense, DType target, int64_t first, int64_t last) {
  alignas(64) uint8_t floats[4 * kTile];
  uint32_t largest = 0;
  for (int64_t i = first; i < last; i += kTile) {
    largest = std::max(largest, LoadDense(dense, i, std::min(kTile, last - i), floats));
  }
  return OutcomeOf(largest, true, target);
}

void CopyValues(DType dtype, const uint8_t* source, int64_t from, int64_t count, uint8_t* out, int64_t to) {
  const int64_t bits = BitsOf(dtype);
  if (from * bits % 8 == 0 && to * bits % 8 == 0) {
    const int64_t bytes = count * bits / 8;
    if (bytes > 0) std::memcpy(out + to * bits / 8, source + from * bits / 8, static_cast<size_t>(bytes));
    const int64_t copied = bytes * 8 / bits;
    from += copied;
    to += copied;
    count -= copied;
  }
  alignas(64) uint8_t codes[kTile];
  while (count > 0) {
    const int64_t piece = std::min(count, kTile);
    UnpackCodes(source, dtype, from, piece, codes);
    PackCodes(codes, dtype, to, piece, out);
    from += piece;
    to += piece;
    count -= piece;
  }
}

std::string DescribeFailure(const StoredPayload& source, int64_t length, const Encoding& target) {
  const float limit = std::bit_cast<float>(OverflowBits(target.dtype));
  for (int64_t b = 0; b < source.batch; ++b) {
    for (int64_t h = 0; h < source.heads; ++h) {
      for (int64_t t = 0; t < length; ++t) {
        for (int64_t w = 0; w < source.width; ++w) {
          float value;
          DecodeRow(source, b, h, t, w, 1, &value);
          if (std::fabs(value) < limit) continue;
          return std::to_string(value) + " at batch " + std::to_string(b) + ", head " + std::to_string(h) + ", token " +
                 std::to_string(t) + ", column " + std::to_string(w);
        }
      }
    }
  }
  return "none";
}

void DecodeRow(const StoredPayload& source, int64_t b, int64_t h, int64_t t, int64_t column, int64_t count,
               float* out) {
  const int64_t row = (b * source.heads + h) * source.capacity + t;
  Load(source, row * source.width + column, count, reinterpret_cast<uint8_t*>(out));
}

}  // namespace onnx_ai_rt
#endif  // HWY_ONCE
