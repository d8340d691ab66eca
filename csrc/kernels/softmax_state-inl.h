// Online softmax: per query row a maximum, lane-wise partial sums and an unnormalised output.
//
// A state without any key has max -inf, sum 0 and output 0. Tiles update it, partial states of the same rows merge,
// Finish divides. Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
#if defined(ONNX_AI_RT_SOFTMAX_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_SOFTMAX_STATE_INL_H_
#undef ONNX_AI_RT_SOFTMAX_STATE_INL_H_
#else
#define ONNX_AI_RT_SOFTMAX_STATE_INL_H_
#endif

#include "kernels/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// exp(x) for x <= 0, within 2 units in the last place; below -87.3 (where float leaves the normal range) 0; NaN stays.
template <class V, HWY_IF_F32_D(hn::DFromV<V>)>
HWY_INLINE V ExpOfNonPositive(V x) {
  const hn::DFromV<V> d;
  const hn::RebindToSigned<decltype(d)> di;
  // Adding 1.5 * 2^23 rounds to an integer, which stands in the low mantissa bits.
  const V shifter = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), shifter);
  const V n = hn::Sub(shifted, shifter);
  V r = hn::MulAdd(n, hn::Set(d, -0.693145751953125f), x);
  r = hn::MulAdd(n, hn::Set(d, -1.428606765330187e-6f), r);
  // Minimax polynomial of exp on [-ln2/2, ln2/2].
  V p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
  const V bounded = hn::IfThenElse(hn::IsNaN(x), x, scaled);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.3f)), bounded);
}

template <class V, HWY_IF_F64_D(hn::DFromV<V>)>
HWY_INLINE V ExpOfNonPositive(V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(hn::DFromV<V>(), x));
}

// The maximum that is subtracted from scores: 0 where there is no key yet, so that exp(-inf - 0) = 0.
template <typename C>
HWY_INLINE C Subtrahend(C max) {
  return max == kMinusInfinity<C> ? C{0} : max;
}

template <typename C>
HWY_INLINE C ExpScalar(C x) {
  return hn::GetLane(ExpOfNonPositive(hn::Set(Lanes<C>(), x)));
}

// State of one row. `sums` has one partial sum a lane.
template <typename C>
struct RowState {
  C* max;
  C* sums;
};

// Takes `width` scores (whole vectors, -inf beyond) to weights exp(s - max) in place, updates the state and returns the
// factor for the old output.
template <typename C>
HWY_INLINE C UpdateRow(C* HWY_RESTRICT s, size_t width, RowState<C> state) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  VecOf<C> most = hn::Set(d, *state.max);
  for (size_t i = 0; i < width; i += N) most = hn::Max(most, hn::Load(d, s + i));
  const C new_max = hn::ReduceMax(d, most);
  const C subtrahend = Subtrahend(new_max);
  const VecOf<C> base = hn::Set(d, subtrahend);
  VecOf<C> sum = hn::Zero(d);
  for (size_t i = 0; i < width; i += N) {
    const VecOf<C> p = ExpOfNonPositive(hn::Sub(hn::Load(d, s + i), base));
    sum = hn::Add(sum, p);
    hn::Store(p, d, s + i);
  }
  const C alpha = ExpScalar<C>(*state.max - subtrahend);
  hn::Store(hn::MulAdd(hn::Load(d, state.sums), hn::Set(d, alpha), sum), d, state.sums);
  *state.max = new_max;
  return alpha;
}

// The divisor of a finished row. A row that saw keys whose scores were all -inf is NaN (0/0 in IEEE), one that saw
// none is a row of zeros (a divisor of infinity makes it so).
template <typename C>
HWY_INLINE C Divisor(C max, C sum, bool saw_keys) {
  if (max != kMinusInfinity<C>) return sum;
  return saw_keys ? std::numeric_limits<C>::quiet_NaN() : std::numeric_limits<C>::infinity();
}

// Writes output / divisor.
template <typename C>
HWY_INLINE void WriteRow(const C* HWY_RESTRICT output, C divisor, size_t count, DType dtype, uint8_t* to) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  const VecOf<C> by = hn::Set(d, divisor);
  for (size_t c = 0; c < count; c += N) {
    StoreAs<C>(hn::Div(hn::LoadU(d, output + c), by), dtype, to + c * BytesOf(dtype), std::min(N, count - c));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
