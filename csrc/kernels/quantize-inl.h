// The vector loops of quantize.cc, compiled once per CPU target.
//
// Floats are read and written as bytes: nothing is aligned. Each loop returns the largest |float| it saw, as bits: from
// 0x7f800000 on there was a NaN or an infinity.

#if defined(ONNX_AI_RT_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_QUANTIZE_INL_H_
#undef ONNX_AI_RT_QUANTIZE_INL_H_
#else
#define ONNX_AI_RT_QUANTIZE_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI32 = hn::RebindToSigned<DF>;
using DU32 = hn::RebindToUnsigned<DF>;
using DU16 = hn::Repartition<uint16_t, DF>;
using DI16 = hn::Repartition<int16_t, DF>;
using DU8 = hn::Repartition<uint8_t, DF>;
using DI8 = hn::Repartition<int8_t, DF>;
using VF = hn::Vec<DF>;
using VI32 = hn::Vec<DI32>;

HWY_INLINE VF LoadFloats(const uint8_t* in) { return hn::BitCast(DF(), hn::LoadU(DU8(), in)); }
HWY_INLINE void StoreFloats(VF x, uint8_t* out) { hn::StoreU(hn::BitCast(DU8(), x), DU8(), out); }

HWY_INLINE VI32 AbsBits(VF x) { return hn::And(hn::BitCast(DI32(), x), hn::Set(DI32(), 0x7fffffff)); }

// Runs body(in, out, i, &largest) for whole steps of `step` values, i being the first one's number, and once on a copy
// of what is left, padded with its first value so that padding never raises the largest.
template <size_t kInBytes, size_t kOutBytes, typename Body>
HWY_INLINE uint32_t ForEachStep(const uint8_t* in, size_t n, uint8_t* out, size_t step, const Body& body) {
  VI32 largest = hn::Zero(DI32());
  size_t i = 0;
  for (; i + step <= n; i += step) body(in + i * kInBytes, out + i * kOutBytes, i, &largest);
  if (i != n) {
    constexpr size_t kMaxStep = 4 * HWY_MAX_LANES_D(DF);
    HWY_ALIGN uint8_t padded_in[kMaxStep * kInBytes];
    HWY_ALIGN uint8_t padded_out[kMaxStep * kOutBytes];
    std::memcpy(padded_in, in + i * kInBytes, (n - i) * kInBytes);
    for (size_t j = n - i; j < step; ++j) std::memcpy(padded_in + j * kInBytes, padded_in, kInBytes);
    body(padded_in, padded_out, i, &largest);
    std::memcpy(out + i * kOutBytes, padded_out, (n - i) * kOutBytes);
  }
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(DI32(), largest)));
}

// load(from, number of the first value) -> vector of floats -> store(vector, to), one vector at a time.
template <size_t kInBytes, size_t kOutBytes, typename Load, typename Store>
HWY_INLINE uint32_t MapFloats(const uint8_t* in, size_t n, uint8_t* out, const Load& load, const Store& store) {
  const auto step = [&](const uint8_t* from, uint8_t* to, size_t i, VI32* largest) HWY_ATTR {
    const VF x = load(from, i);
    *largest = hn::Max(*largest, AbsBits(x));
    store(x, to);
  };
  return ForEachStep<kInBytes, kOutBytes>(in, n, out, hn::Lanes(DF()), step);
}

// Whole numbers below 2^22 in the low bits of a float that this was added to, rounded to nearest even by the addition.
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23
constexpr int32_t kRounderBits = 0x4b400000;

// The bits of round(x / scale) + kRounderBits.
HWY_INLINE VI32 QuantizeStep(const uint8_t* in, VF scale, VF lowest, VF highest, VI32* largest) {
  const VF x = LoadFloats(in);
  *largest = hn::Max(*largest, AbsBits(x));
  // Clamping between whole numbers before rounding gives what saturating after it would.
  const VF clamped = hn::Min(hn::Max(hn::Div(x, scale), lowest), highest);
  return hn::BitCast(DI32(), hn::Add(clamped, hn::Set(DF(), kRounder)));
}

// One code a byte, in two's complement: saturate(round_half_even(x / scale) + zero_point) in lowest..highest.
uint32_t QuantizeFloats(const uint8_t* in, size_t n, float scale, int32_t zero_point, int32_t lowest, int32_t highest,
                        uint8_t* codes) {
  const DI32 di32;
  const size_t lanes = hn::Lanes(di32);
  const VF v_scale = hn::Set(DF(), scale);
  const VF v_lowest = hn::Set(DF(), static_cast<float>(lowest - zero_point));
  const VF v_highest = hn::Set(DF(), static_cast<float>(highest - zero_point));
  // Unsigned codes go through the signed narrowing shifted by 128.
  const bool is_unsigned = lowest == 0;
  const auto v_zero = hn::Set(di32, (is_unsigned ? zero_point - 128 : zero_point) - kRounderBits);
  const auto v_flip = hn::Set(DU8(), static_cast<uint8_t>(is_unsigned ? 0x80 : 0));
  const auto step = [&](const uint8_t* from, uint8_t* to, size_t, VI32* largest) HWY_ATTR {
    const auto a = hn::Add(QuantizeStep(from, v_scale, v_lowest, v_highest, largest), v_zero);
    const auto b = hn::Add(QuantizeStep(from + 4 * lanes, v_scale, v_lowest, v_highest, largest), v_zero);
    const auto c = hn::Add(QuantizeStep(from + 8 * lanes, v_scale, v_lowest, v_highest, largest), v_zero);
    const auto d = hn::Add(QuantizeStep(from + 12 * lanes, v_scale, v_lowest, v_highest, largest), v_zero);
    const auto ab = hn::OrderedDemote2To(DI16(), a, b);
    const auto cd = hn::OrderedDemote2To(DI16(), c, d);
    const auto abcd = hn::OrderedDemote2To(DI8(), ab, cd);
    hn::StoreU(hn::Xor(hn::BitCast(DU8(), abcd), v_flip), DU8(), to);
  };
  return ForEachStep<4, 1>(in, n, codes, 4 * lanes, step);
}

// The load of MapFloats for codes of one byte each: decode(codes, number of the first).
template <typename Decode>
HWY_INLINE uint32_t DequantizeWith(const uint8_t* codes, size_t n, bool is_signed, const Decode& decode, uint8_t* out) {
  const hn::Rebind<uint8_t, DF> d8;
  const hn::Rebind<int8_t, DF> di8;
  const auto v_flip = hn::Set(d8, static_cast<uint8_t>(is_signed ? 0 : 0x80));
  const auto v_back = hn::Set(DI32(), is_signed ? 0 : 128);
  const auto load = [&](const uint8_t* from, size_t i) HWY_ATTR {
    const auto code = hn::PromoteTo(DI32(), hn::BitCast(di8, hn::Xor(hn::LoadU(d8, from), v_flip)));
    return decode(hn::Add(code, v_back), i);
  };
  const auto store = [](VF x, uint8_t* to) HWY_ATTR { StoreFloats(x, to); };
  return MapFloats<1, 4>(codes, n, out, load, store);
}

uint32_t DequantizeCodes(const uint8_t* codes, size_t n, bool is_signed, float scale, int32_t zero_point,
                         uint8_t* out) {
  const VF v_scale = hn::Set(DF(), scale);
  const auto v_zero = hn::Set(DI32(), zero_point);
  const auto decode = [&](VI32 code, size_t)
                          HWY_ATTR { return hn::Mul(hn::ConvertTo(DF(), hn::Sub(code, v_zero)), v_scale); };
  return DequantizeWith(codes, n, is_signed, decode, out);
}

// With a scale and a zero point for each value; both arrays go on with zeros for kPairPadding elements beyond n.
uint32_t DequantizeVarying(const uint8_t* codes, size_t n, bool is_signed, const float* scales,
                           const int32_t* zero_points, uint8_t* out) {
  const auto decode = [&](VI32 code, size_t i) HWY_ATTR {
    const auto shifted = hn::Sub(code, hn::LoadU(DI32(), zero_points + i));
    return hn::Mul(hn::ConvertTo(DF(), shifted), hn::LoadU(DF(), scales + i));
  };
  return DequantizeWith(codes, n, is_signed, decode, out);
}

uint32_t CopyFloats(const uint8_t* in, size_t n, uint8_t* out) {
  const auto load = [](const uint8_t* from, size_t) HWY_ATTR { return LoadFloats(from); };
  const auto store = [](VF x, uint8_t* to) HWY_ATTR { StoreFloats(x, to); };
  return MapFloats<4, 4>(in, n, out, load, store);
}

// The 16-bit halves of DF's lanes.
using D16 = hn::Rebind<uint16_t, DF>;
using D16Bytes = hn::Repartition<uint8_t, D16>;

// Exact. Highway's emulation for SSE2, which has no instruction, takes infinity and NaN for numbers from 65536 on.
HWY_INLINE VF FloatsOfHalfs(hn::Vec<D16> bits) {
  const VF x = hn::PromoteTo(DF(), hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), bits));
#if HWY_TARGET == HWY_SSE2
  const VF special = hn::BitCast(DF(), hn::Or(hn::BitCast(DU32(), x), hn::Set(DU32(), 0x7f800000u)));
  return hn::IfThenElse(hn::Ge(hn::Abs(x), hn::Set(DF(), 65536.0f)), special, x);
#else
  return x;
#endif
}

HWY_INLINE hn::Vec<D16> Load16(const uint8_t* in) { return hn::BitCast(D16(), hn::LoadU(D16Bytes(), in)); }
HWY_INLINE void Store16(hn::Vec<D16> bits, uint8_t* out) { hn::StoreU(hn::BitCast(D16Bytes(), bits), D16Bytes(), out); }

uint32_t PromoteHalfs(const uint8_t* in, size_t n, uint8_t* out) {
  const auto load = [](const uint8_t* from, size_t) HWY_ATTR { return FloatsOfHalfs(Load16(from)); };
  const auto store = [](VF x, uint8_t* to) HWY_ATTR { StoreFloats(x, to); };
  return MapFloats<2, 4>(in, n, out, load, store);
}

uint32_t PromoteBFloats(const uint8_t* in, size_t n, uint8_t* out) {
  const auto load = [](const uint8_t* from, size_t)
                        HWY_ATTR { return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU32(), Load16(from)))); };
  const auto store = [](VF x, uint8_t* to) HWY_ATTR { StoreFloats(x, to); };
  return MapFloats<2, 4>(in, n, out, load, store);
}

// To float16 bits, rounded to nearest even. |x| below 65520: the caller looks at the largest.
HWY_INLINE hn::Vec<D16> HalfBits(VF x) {
#if HWY_TARGET == HWY_SSE2
  // Without F16C. A subnormal result is what remains of an addition that puts its last bit at the bottom of the
  // mantissa; a normal one rounds in integers.
  const DU32 du;
  const auto bits = hn::BitCast(du, x);
  const auto magnitude = hn::BitCast(du, AbsBits(x));
  const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  const auto magic = hn::Set(du, static_cast<uint32_t>(127 - 15 + 23 - 10 + 1) << 23);
  const auto small = hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(DF(), magnitude), hn::BitCast(DF(), magic))), magic);
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
  const auto biased = hn::Add(magnitude, hn::Set(du, (static_cast<uint32_t>(15 - 127) << 23) + 0xfff));
  const auto normal = hn::ShiftRight<13>(hn::Add(biased, odd));
  const auto is_small = hn::Lt(magnitude, hn::Set(du, 113u << 23));
  return hn::TruncateTo(D16(), hn::Or(sign, hn::IfThenElse(is_small, small, normal)));
#else
  return hn::BitCast(D16(), hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), x));
#endif
}

// To bfloat16 bits, rounded in integers: the conversion instruction takes subnormals for 0, and the bytes must not
// depend on the CPU.
HWY_INLINE hn::Vec<D16> BFloatBits(VF x) {
  const DU32 du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  return hn::TruncateTo(D16(), hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)))));
}

uint32_t DemoteHalfs(const uint8_t* in, size_t n, uint8_t* out) {
  const auto load = [](const uint8_t* from, size_t) HWY_ATTR { return LoadFloats(from); };
  const auto store = [](VF x, uint8_t* to) HWY_ATTR { Store16(HalfBits(x), to); };
  return MapFloats<4, 2>(in, n, out, load, store);
}

uint32_t DemoteBFloats(const uint8_t* in, size_t n, uint8_t* out) {
  const auto load = [](const uint8_t* from, size_t) HWY_ATTR { return LoadFloats(from); };
  const auto store = [](VF x, uint8_t* to) HWY_ATTR { Store16(BFloatBits(x), to); };
  return MapFloats<4, 2>(in, n, out, load, store);
}

// 2 codes of one byte each -> 1 byte, the first in the low nibble.
void PackNibbles(const uint8_t* codes, size_t bytes, uint8_t* out) {
  const DU8 du8;
  const size_t lanes = hn::Lanes(du8);
  const auto mask = hn::Set(du8, 0x0f);
  const auto pack = [&](const uint8_t* from) HWY_ATTR {
    const auto pairs = hn::BitCast(DU16(), hn::And(hn::LoadU(du8, from), mask));
    return hn::BitCast(DI16(), hn::And(hn::Or(pairs, hn::ShiftRight<4>(pairs)), hn::Set(DU16(), 0xff)));
  };
  size_t i = 0;
  for (; i + lanes <= bytes; i += lanes) {
    hn::StoreU(hn::OrderedDemote2To(du8, pack(codes + 2 * i), pack(codes + 2 * i + lanes)), du8, out + i);
  }
  for (; i < bytes; ++i) out[i] = static_cast<uint8_t>((codes[2 * i] & 15) | (codes[2 * i + 1] & 15) << 4);
}

// 4 codes of one byte each -> 1 byte, the first in the lowest bits.
void PackCrumbs(const uint8_t* codes, size_t bytes, uint8_t* out) {
  const DU8 du8;
  const size_t lanes = hn::Lanes(du8);
  const auto mask = hn::Set(du8, 3);
  const auto pack = [&](const uint8_t* from) HWY_ATTR {
    const auto fours = hn::BitCast(DU32(), hn::And(hn::LoadU(du8, from), mask));
    const auto twos = hn::Or(fours, hn::ShiftRight<6>(fours));
    return hn::BitCast(DI32(), hn::And(hn::Or(twos, hn::ShiftRight<12>(twos)), hn::Set(DU32(), 0xff)));
  };
  size_t i = 0;
  for (; i + lanes <= bytes; i += lanes) {
    const uint8_t* from = codes + 4 * i;
    const auto ab = hn::OrderedDemote2To(DI16(), pack(from), pack(from + lanes));
    const auto cd = hn::OrderedDemote2To(DI16(), pack(from + 2 * lanes), pack(from + 3 * lanes));
    hn::StoreU(hn::OrderedDemote2To(du8, ab, cd), du8, out + i);
  }
  for (; i < bytes; ++i) {
    const uint8_t* from = codes + 4 * i;
    out[i] = static_cast<uint8_t>((from[0] & 3) | (from[1] & 3) << 2 | (from[2] & 3) << 4 | (from[3] & 3) << 6);
  }
}

// Packed codes to one byte each, signed ones extended: sign_bit is 8 or 2 for them and 0 for unsigned ones.
void UnpackNibbles(const uint8_t* in, size_t bytes, uint8_t sign_bit, uint8_t* codes) {
  const hn::Rebind<uint8_t, DU16> d_in;
  const size_t lanes = hn::Lanes(d_in);
  const auto sign = hn::Set(DU8(), sign_bit);
  size_t i = 0;
  for (; i + lanes <= bytes; i += lanes) {
    const auto wide = hn::PromoteTo(DU16(), hn::LoadU(d_in, in + i));
    const auto split = hn::And(hn::Or(wide, hn::ShiftLeft<4>(wide)), hn::Set(DU16(), 0x0f0f));
    hn::StoreU(hn::Sub(hn::Xor(hn::BitCast(DU8(), split), sign), sign), DU8(), codes + 2 * i);
  }
  for (; i < bytes; ++i) {
    codes[2 * i] = static_cast<uint8_t>(((in[i] & 15) ^ sign_bit) - sign_bit);
    codes[2 * i + 1] = static_cast<uint8_t>((in[i] >> 4 ^ sign_bit) - sign_bit);
  }
}

void UnpackCrumbs(const uint8_t* in, size_t bytes, uint8_t sign_bit, uint8_t* codes) {
  const hn::Rebind<uint8_t, DU32> d_in;
  const size_t lanes = hn::Lanes(d_in);
  const auto sign = hn::Set(DU8(), sign_bit);
  size_t i = 0;
  for (; i + lanes <= bytes; i += lanes) {
    const auto wide = hn::PromoteTo(DU32(), hn::LoadU(d_in, in + i));
    const auto twos = hn::Or(wide, hn::ShiftLeft<12>(wide));
    const auto split = hn::And(hn::Or(twos, hn::ShiftLeft<6>(twos)), hn::Set(DU32(), 0x03030303));
    hn::StoreU(hn::Sub(hn::Xor(hn::BitCast(DU8(), split), sign), sign), DU8(), codes + 4 * i);
  }
  for (; i < bytes; ++i) {
    for (int k = 0; k < 4; ++k) {
      codes[4 * i + static_cast<size_t>(k)] = static_cast<uint8_t>(((in[i] >> 2 * k & 3) ^ sign_bit) - sign_bit);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
