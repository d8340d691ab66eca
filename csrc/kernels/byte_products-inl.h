// Products of bytes that are added four at a time to 32 bits, and numbers as bytes for them. Compiled once per target.
#if defined(ONNX_AI_RT_BYTE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_BYTE_PRODUCTS_INL_H_
#undef ONNX_AI_RT_BYTE_PRODUCTS_INL_H_
#else
#define ONNX_AI_RT_BYTE_PRODUCTS_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

inline constexpr bool kMultipliesBytes = HWY_TARGET <= HWY_AVX3_DL && HWY_ARCH_X86;

// Four bytes of each of four neighbours, byte by byte: 16 bytes, the last four of which are not used.
inline constexpr size_t kWordOfDigits = 16;

// The highest bit of each code of a byte. Flipped, signed codes become unsigned ones that are more by half the range,
// and unsigned codes signed ones that are less by as much.
template <int kBits>
inline constexpr uint8_t kSignBits = kBits == 8   ? 0x80
                                     : kBits == 4 ? 0x88
                                                  : 0xAA;
template <int kBits>
inline constexpr int32_t kHalfRange = 1 << (kBits - 1);

// Code number `plane` of each byte, unsigned where there are several.
template <int kBits, class V8>
HWY_INLINE V8 CodesOfPlane(V8 bytes, size_t plane) {
  const hn::DFromV<V8> d8;
  const hn::Repartition<uint16_t, decltype(d8)> d16;
  if constexpr (kBits == 8) return bytes;
  const V8 shifted = hn::BitCast(d8, hn::ShiftRightSame(hn::BitCast(d16, bytes), static_cast<int>(plane) * kBits));
  return hn::And(shifted, hn::Set(d8, static_cast<uint8_t>((1u << kBits) - 1)));
}

// sum + the dot products of each lane's four bytes.
template <class VU8, class VS8, class V32>
HWY_INLINE V32 AddByteProducts(VU8 unsigned_bytes, VS8 signed_bytes, V32 sum) {
#if HWY_TARGET <= HWY_AVX3_DL && HWY_ARCH_X86
  // What the intrinsic does, in place: compilers copy sums around it.
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(unsigned_bytes.raw), "v"(signed_bytes.raw));
  return sum;
#else
  return hn::SumOfMulQuadAccumulate(hn::DFromV<V32>(), unsigned_bytes, signed_bytes, sum);
#endif
}

// The word at `from` in every lane.
template <class D>
HWY_INLINE hn::Vec<D> BroadcastWord(D d, const void* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return hn::BitCast(d, hn::Set(hn::Repartition<int32_t, D>(), word));
}

// Rounds numbers below 2^31. Highway's also clamps the others.
template <class VF>
HWY_INLINE hn::Vec<hn::RebindToSigned<hn::DFromV<VF>>> NearestNumber(VF v) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  return {_mm512_cvtps_epi32(v.raw)};
#else
  return hn::NearestInt(v);
#endif
}

// Byte p of lanes 4 b to 4 b + 3 becomes lane 4 b + p.
template <class V32, class D8 = hn::Repartition<uint8_t, hn::DFromV<V32>>>
HWY_INLINE hn::Vec<D8> GatherDigits(V32 v) {
  const D8 d8;
  HWY_ALIGN static constexpr uint8_t kOrder[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  return hn::TableLookupBytes(hn::BitCast(d8, v), hn::LoadDup128(d8, kOrder));
}

// A sum of products from the sums that each digit gave.
template <size_t kDigits, class V32>
HWY_INLINE VecOf<float> JoinDigits(const V32 (&sums)[kDigits]) {
  const Lanes<float> d;
  VecOf<float> sum = hn::ConvertTo(d, sums[0]);
  HWY_UNROLL(4)
  for (size_t p = 1; p < kDigits; ++p) {
    sum = hn::MulAdd(hn::ConvertTo(d, sums[p]), hn::Set(d, p == 1 ? 256.0f : 65536.0f), sum);
  }
  return sum;
}

// From AddByteProducts of gathered digits with ones: the sums of the digits, in the first lanes.
template <class V32>
HWY_INLINE V32 SumBlocks(V32 v) {
  const hn::DFromV<V32> d;
  if constexpr (hn::MaxLanes(d) >= 16) v = hn::Add(v, hn::ConcatLowerUpper(d, v, v));
  if constexpr (hn::MaxLanes(d) >= 8) v = hn::Add(v, hn::SwapAdjacentBlocks(v));
  return v;
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
