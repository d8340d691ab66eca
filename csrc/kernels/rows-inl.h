// Rows of any floating type as vectors of the compute type (float or double), and back. Compiled once per target.
#if defined(ONNX_AI_RT_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_ROWS_INL_H_
#undef ONNX_AI_RT_ROWS_INL_H_
#else
#define ONNX_AI_RT_ROWS_INL_H_
#endif

#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/attention_item.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// All lanes of a full vector. Targets of unknown vector size are not compiled: vectors stand in arrays.
template <typename C>
using Lanes = hn::ScalableTag<C>;
template <typename C>
using VecOf = hn::Vec<Lanes<C>>;
template <typename C>
inline constexpr size_t kLanes = hn::MaxLanes(Lanes<C>());

// Else the target has 16 vector registers.
inline constexpr bool k32Registers = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64;

// Exact. Highway's emulation for SSE2, which has no instruction for it, takes infinity and NaN for numbers from 65536
// on.
template <class DF>
HWY_INLINE hn::Vec<DF> HalfToFloat(DF df, hn::Vec<hn::Rebind<hwy::float16_t, DF>> v) {
  const hn::Vec<DF> f = hn::PromoteTo(df, v);
  if constexpr (HWY_TARGET != HWY_SSE2) return f;
  const hn::Vec<DF> special = hn::Or(f, hn::Set(df, std::numeric_limits<float>::infinity()));
  return hn::IfThenElse(hn::Ge(hn::Abs(f), hn::Set(df, 65536.0f)), special, f);
}

// Promotes stored values to the compute type; exact.
template <typename C, typename T, class V>
HWY_INLINE VecOf<C> ToCompute(V v) {
  const Lanes<C> d;
  if constexpr (hwy::IsSame<C, T>()) {
    return v;
  } else if constexpr (hwy::IsSame<T, int8_t>()) {
    return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<Lanes<C>>(), v));
  } else if constexpr (sizeof(C) == 4 && hwy::IsSame<T, hwy::float16_t>()) {
    return HalfToFloat(d, v);
  } else if constexpr (sizeof(C) == 8 && hwy::IsSame<T, hwy::float16_t>()) {
    return hn::PromoteTo(d, HalfToFloat(hn::Rebind<float, Lanes<C>>(), v));
  } else if constexpr (sizeof(C) == 8 && hwy::IsSame<T, hwy::bfloat16_t>()) {
    return hn::PromoteTo(d, hn::PromoteTo(hn::Rebind<float, Lanes<C>>(), v));
  } else {
    return hn::PromoteTo(d, v);
  }
}

// Codes of 8, 4 or 2 bits in place of an element type; the storage type is in RowSource. int8_t: signed bytes whose
// zero point is 0.
template <int kBits>
struct Code {};

template <typename T>
struct IsCode : std::false_type {};
template <int kBits>
struct IsCode<Code<kBits>> : std::true_type {};
template <>
struct IsCode<int8_t> : std::true_type {};

// Vectors that come from one load. Codes of less than 8 bits are taken apart as they lie: plane p has the values at
// columns p, p + kPlanes, p + 2 kPlanes, ... of kPlanes vectors' worth of columns.
template <typename T>
inline constexpr size_t kPlanes = 1;
template <>
inline constexpr size_t kPlanes<Code<4>> = 2;
template <>
inline constexpr size_t kPlanes<Code<2>> = 4;

// The rows of one side of a run, read in place. Pointers may have any alignment: pages lie in a byte stream.
template <typename T>
class Reader {
 public:
  Reader(const RowSource& source, int64_t first_row) : data_(source.Row(first_row)), stride_(source.stride_bytes) {}
  Reader(const void* data, int64_t stride) : data_(static_cast<const uint8_t*>(data)), stride_(stride) {}

  const uint8_t* Row(size_t k) const { return data_ + static_cast<int64_t>(k) * stride_; }
  int64_t stride() const { return stride_; }

  template <typename C>
  HWY_INLINE void Load(const uint8_t* row, size_t column, VecOf<C> (&planes)[1]) const {
    const hn::Rebind<T, Lanes<C>> dt;
    planes[0] = ToCompute<C, T>(hn::LoadU(dt, reinterpret_cast<const T*>(row) + column));
  }
  // The first `count` columns from `column` on, the others 0. Reads no further.
  template <typename C>
  HWY_INLINE void LoadN(const uint8_t* row, size_t column, size_t count, VecOf<C> (&planes)[1]) const {
    const hn::Rebind<T, Lanes<C>> dt;
    planes[0] = ToCompute<C, T>(hn::LoadN(dt, reinterpret_cast<const T*>(row) + column, count));
  }

 private:
  const uint8_t* data_;
  int64_t stride_;
};

// value = code - zero point, exactly; the scale is left to the caller. A byte goes into the mantissa of 2^23, from
// which 2^23 + zero point is subtracted; signed codes have their sign bit flipped, which adds half the range.
template <int kBits>
class Reader<Code<kBits>> {
 public:
  Reader(const RowSource& source, int64_t first_row) : data_(source.Row(first_row)), stride_(source.stride_bytes) {
    const bool is_signed = source.dtype == DType::kInt8 || source.dtype == DType::kInt4 || source.dtype == DType::kInt2;
    constexpr uint32_t kHalf = 1u << (kBits - 1);
    flip_ = kMagic | (is_signed ? kHalf : 0);
    offset_ = static_cast<float>(8388608 + (is_signed ? static_cast<int32_t>(kHalf) : 0) + source.zero_point);
  }

  const uint8_t* Row(size_t k) const { return data_ + static_cast<int64_t>(k) * stride_; }
  int64_t stride() const { return stride_; }

  template <typename C>
  HWY_INLINE void Load(const uint8_t* row, size_t column, VecOf<C> (&planes)[kPlanes<Code<kBits>>]) const {
    const hn::Rebind<uint8_t, Lanes<C>> d8;
    Unpack<C>(hn::LoadU(d8, row + column / kPlanes<Code<kBits>>), planes);
  }
  template <typename C>
  HWY_INLINE void LoadN(const uint8_t* row, size_t column, size_t count,
                        VecOf<C> (&planes)[kPlanes<Code<kBits>>]) const {
    constexpr size_t kPerByte = kPlanes<Code<kBits>>;
    const hn::Rebind<uint8_t, Lanes<C>> d8;
    Unpack<C>(hn::LoadN(d8, row + column / kPerByte, (count + kPerByte - 1) / kPerByte), planes);
  }

 private:
  static constexpr uint32_t kMagic = 0x4B000000;

  template <typename C, class V8>
  HWY_INLINE void Unpack(V8 bytes, VecOf<C> (&planes)[kPlanes<Code<kBits>>]) const {
    static_assert(sizeof(C) == 4, "codes are computed with in float");
    const Lanes<float> d;
    const hn::RebindToUnsigned<Lanes<float>> du;
    const auto raw = hn::PromoteTo(du, bytes);
    const auto flip = hn::Set(du, flip_);
    const auto mask = hn::Set(du, (1u << kBits) - 1);
    const VecOf<float> offset = hn::Set(d, offset_);
    HWY_UNROLL(4)
    for (size_t p = 0; p < kPlanes<Code<kBits>>; ++p) {
      auto code = p == 0 ? raw : hn::ShiftRightSame(raw, static_cast<int>(p) * kBits);
      if (p + 1 != kPlanes<Code<kBits>>) code = hn::And(code, mask);
      planes[p] = hn::Sub(hn::BitCast(d, hn::Xor(code, flip)), offset);
    }
  }

  const uint8_t* data_;
  int64_t stride_;
  uint32_t flip_;
  float offset_;
};

// Vectors of neighbouring columns to planes, and back.
template <typename C>
HWY_INLINE void ToPlanes(VecOf<C> (&)[1]) {}
template <typename C>
HWY_INLINE void ToPlanes(VecOf<C> (&v)[2]) {
  const Lanes<C> d;
  const VecOf<C> even = hn::ConcatEven(d, v[1], v[0]);
  v[1] = hn::ConcatOdd(d, v[1], v[0]);
  v[0] = even;
}
template <typename C>
HWY_INLINE void ToPlanes(VecOf<C> (&v)[4]) {
  const Lanes<C> d;
  const VecOf<C> even[2] = {hn::ConcatEven(d, v[1], v[0]), hn::ConcatEven(d, v[3], v[2])};
  const VecOf<C> odd[2] = {hn::ConcatOdd(d, v[1], v[0]), hn::ConcatOdd(d, v[3], v[2])};
  v[0] = hn::ConcatEven(d, even[1], even[0]);
  v[1] = hn::ConcatEven(d, odd[1], odd[0]);
  v[2] = hn::ConcatOdd(d, even[1], even[0]);
  v[3] = hn::ConcatOdd(d, odd[1], odd[0]);
}
template <typename C>
HWY_INLINE void FromPlanes(VecOf<C> (&)[1]) {}
template <typename C>
HWY_INLINE void FromPlanes(VecOf<C> (&v)[2]) {
  const Lanes<C> d;
  const VecOf<C> lower = hn::InterleaveWholeLower(d, v[0], v[1]);
  v[1] = hn::InterleaveWholeUpper(d, v[0], v[1]);
  v[0] = lower;
}
template <typename C>
HWY_INLINE void FromPlanes(VecOf<C> (&v)[4]) {
  const Lanes<C> d;
  const VecOf<C> even[2] = {hn::InterleaveWholeLower(d, v[0], v[2]), hn::InterleaveWholeUpper(d, v[0], v[2])};
  const VecOf<C> odd[2] = {hn::InterleaveWholeLower(d, v[1], v[3]), hn::InterleaveWholeUpper(d, v[1], v[3])};
  v[0] = hn::InterleaveWholeLower(d, even[0], odd[0]);
  v[1] = hn::InterleaveWholeUpper(d, even[0], odd[0]);
  v[2] = hn::InterleaveWholeLower(d, even[1], odd[1]);
  v[3] = hn::InterleaveWholeUpper(d, even[1], odd[1]);
}

// Calls f with a value of the stored type. Float computes with types of at most 32 bits, double not with codes.
template <typename C, class F>
HWY_INLINE void WithType(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kHalf: return f(hwy::float16_t());
    case DType::kBFloat16: return f(hwy::bfloat16_t());
    case DType::kDouble:
      if constexpr (sizeof(C) == 8) f(double());
      return;
    case DType::kInt8:
    case DType::kUInt8:
      if constexpr (sizeof(C) == 4) f(Code<8>());
      return;
    case DType::kInt4:
    case DType::kUInt4:
      if constexpr (sizeof(C) == 4) f(Code<4>());
      return;
    case DType::kInt2:
    case DType::kUInt2:
      if constexpr (sizeof(C) == 4) f(Code<2>());
      return;
    default: return f(float());
  }
}

// WithType for the rows of a source. Signed bytes without a zero point are numbers: the cheapest codes to convert.
template <typename C, class F>
HWY_INLINE void WithRows(const RowSource& rows, const F& f) {
  if constexpr (sizeof(C) == 4) {
    if (rows.dtype == DType::kInt8 && rows.zero_point == 0) return f(int8_t());
  }
  WithType<C>(rows.dtype, f);
}

// Converts `count` values, multiplied by `scale` where they are codes, and fills up to whole planes with anything.
template <typename C, typename T>
HWY_INLINE void ConvertRow(const Reader<T>& rows, size_t row, size_t count, C scale, C* to) {
  constexpr size_t N = kLanes<C>;
  constexpr size_t P = kPlanes<T>;
  const Lanes<C> d;
  const uint8_t* const from = rows.Row(row);
  for (size_t i = 0; i < count; i += P * N) {
    VecOf<C> v[P];
    if (i + P * N <= count) {
      rows.template Load<C>(from, i, v);
    } else {
      rows.template LoadN<C>(from, i, count - i, v);
    }
    FromPlanes<C>(v);
    HWY_UNROLL(4)
    for (size_t p = 0; p < P; ++p) {
      hn::StoreU(IsCode<T>() ? hn::Mul(v[p], hn::Set(d, scale)) : v[p], d, to + i + p * N);
    }
  }
}

// Rounds to nearest even, NaN stays NaN.
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, DF>> BFloat16Bits(DF df, V v) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<uint16_t, DF> du16;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  (void)df;
  return hn::TruncateTo(du16, hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded)));
}

// Stores the first `count` lanes (0 < count <= lanes) as `dtype`; halves round to nearest even.
template <typename C>
HWY_INLINE void StoreAs(VecOf<C> v, DType dtype, uint8_t* to, size_t count) {
  const Lanes<C> d;
  const hn::Rebind<float, Lanes<C>> df;
  if (dtype == DType::kDouble) {
    if constexpr (sizeof(C) == 8) hn::StoreN(v, d, reinterpret_cast<double*>(to), count);
    return;
  }
  hn::Vec<decltype(df)> f;
  if constexpr (sizeof(C) == 8) {
    f = hn::DemoteTo(df, v);
  } else {
    f = v;
  }
  if (dtype == DType::kFloat) {
    hn::StoreN(f, df, reinterpret_cast<float*>(to), count);
  } else if (dtype == DType::kHalf) {
    const hn::Rebind<hwy::float16_t, decltype(df)> dh;
    hn::StoreN(hn::DemoteTo(dh, f), dh, reinterpret_cast<hwy::float16_t*>(to), count);
  } else {
    const hn::Rebind<uint16_t, decltype(df)> du16;
    hn::StoreN(BFloat16Bits(df, f), du16, reinterpret_cast<uint16_t*>(to), count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
