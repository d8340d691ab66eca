// Rows of any floating type as vectors of the compute type (float or double), and back. Compiled once per target.
#if defined(ONNX_AI_RT_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_ROWS_INL_H_
#undef ONNX_AI_RT_ROWS_INL_H_
#else
#define ONNX_AI_RT_ROWS_INL_H_
#endif

#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/tensor_view.h"

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

// Exact. Highway's emulation for SSE2, which has no instruction for it, takes infinity and NaN for numbers from 65536 on.
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

// The pointers may have any alignment: pages lie in a byte stream.
template <typename C, typename T>
HWY_INLINE VecOf<C> LoadAs(const T* from) {
  const hn::Rebind<T, Lanes<C>> dt;
  return ToCompute<C, T>(hn::LoadU(dt, from));
}

// The first `count` lanes, the others 0. Reads no further.
template <typename C, typename T>
HWY_INLINE VecOf<C> LoadAsN(const T* from, size_t count) {
  const hn::Rebind<T, Lanes<C>> dt;
  return ToCompute<C, T>(hn::LoadN(dt, from, count));
}

// Calls f with a value of the stored type. Float computes with types of at most 32 bits only.
template <typename C, class F>
HWY_INLINE void WithType(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kHalf: return f(hwy::float16_t());
    case DType::kBFloat16: return f(hwy::bfloat16_t());
    case DType::kDouble:
      if constexpr (sizeof(C) == 8) return f(double());
      return;
    default: return f(float());
  }
}

// Converts `count` values and fills up to a whole vector with 0.
template <typename C, typename T>
HWY_INLINE void ConvertRow(const T* from, size_t count, C* to) {
  constexpr size_t N = kLanes<C>;
  size_t i = 0;
  for (; i + N <= count; i += N) hn::StoreU(LoadAs<C>(from + i), Lanes<C>(), to + i);
  if (i != count) hn::StoreU(LoadAsN<C>(from + i, count - i), Lanes<C>(), to + i);
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
