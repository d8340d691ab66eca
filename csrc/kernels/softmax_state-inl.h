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

#include "kernels/fold-inl.h"
#include "kernels/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// exp(x) for x <= 0, within 2 units in the last place where it is 1e-6 or more, and 4 elsewhere; below -87.3 (where
// float leaves the normal range) 0; NaN stays.
template <class V, HWY_IF_F32_D(hn::DFromV<V>)>
HWY_INLINE V ExpOfNonPositive(V x) {
  const hn::DFromV<V> d;
  const V log2e = hn::Set(d, 1.44269504088896341f);
#if HWY_TARGET <= HWY_AVX3
  const V n = hn::Round(hn::Mul(x, log2e));
#else
  // Adding 1.5 * 2^23 rounds to an integer, which stands in the low mantissa bits.
  const V shifter = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, log2e, shifter);
  const V n = hn::Sub(shifted, shifter);
#endif
  const V r = hn::MulAdd(n, hn::Set(d, -0.69314718056f), x);
  // Minimax polynomial of exp on [-ln2/2, ln2/2].
  V p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
#if HWY_TARGET <= HWY_AVX3
  const __mmask16 is_kept = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ);
  return V{_mm512_maskz_scalef_ps(is_kept, p.raw, n.raw)};
#else
  const auto is_zero = hn::Lt(x, hn::Set(d, -87.3f));
  const hn::RebindToSigned<decltype(d)> di;
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
  return hn::IfThenZeroElse(is_zero, hn::IfThenElse(hn::IsNaN(x), x, scaled));
#endif
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

struct LargerOfVectors {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};

// The largest lane of each of up to as many vectors as there are lanes, in that order; -inf behind `count` of them.
template <typename C>
HWY_INLINE VecOf<C> LargestOfVectors(const C* HWY_RESTRICT vectors, size_t count) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  const LargerOfVectors larger;
  const auto is_one = hn::FirstN(d, count);
  const VecOf<C> minus_infinity = hn::Set(d, kMinusInfinity<C>);
  VecOf<C> v[N];
  HWY_UNROLL(16)
  for (size_t i = 0; i < N; ++i) v[i] = hn::Load(d, vectors + std::min(i, count - 1) * N);
  if constexpr (N >= 4 && sizeof(C) == 4) {
    if (count <= 4) {
      // Within blocks of 128 bits, then over them.
      VecOf<C> four = FoldPair<2, C>(FoldPair<1, C>(v[0], v[1], larger), FoldPair<1, C>(v[2], v[3], larger), larger);
      if constexpr (N >= 8) four = larger(four, hn::SwapAdjacentBlocks(four));
      if constexpr (N >= 16) four = larger(four, hn::ConcatLowerUpper(d, four, four));
      return hn::IfThenElse(is_one, four, minus_infinity);
    }
  }
  return hn::IfThenElse(is_one, Fold<kFoldLevels<C>, 0, C>(v, larger), minus_infinity);
}

// The online update of `count` rows. lane_max: the largest scores of each row's tile, one vector a row, to be
// multiplied by `scale`. Updates max; alpha gets the factors of old outputs and sums, base what to subtract from
// scores, reach what that leaves of the largest: whole vectors, like max.
template <typename C>
HWY_INLINE void UpdateMaxima(const C* HWY_RESTRICT lane_max, size_t count, C scale, C* HWY_RESTRICT max,
                             C* HWY_RESTRICT alpha, C* HWY_RESTRICT base, C* HWY_RESTRICT reach) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  const VecOf<C> minus_infinity = hn::Set(d, kMinusInfinity<C>);
  for (size_t r = 0; r < count; r += N) {
    const VecOf<C> tile_max = hn::Mul(LargestOfVectors(lane_max + r * N, std::min(N, count - r)), hn::Set(d, scale));
    const VecOf<C> old_max = hn::LoadU(d, max + r), new_max = hn::Max(old_max, tile_max);
    const VecOf<C> subtrahend = hn::IfThenZeroElse(hn::Eq(new_max, minus_infinity), new_max);
    hn::Store(ExpOfNonPositive(hn::Sub(old_max, subtrahend)), d, alpha + r);
    hn::Store(subtrahend, d, base + r);
    hn::Store(hn::Sub(tile_max, subtrahend), d, reach + r);
    hn::StoreU(new_max, d, max + r);
  }
}

// Takes `width` scores (whole vectors, -inf where hidden), times `scale`, to weights exp(score - base), which `keep` is
// given with the number of the first, and adds them to the row's lane-wise sums.
template <typename C, class Keep>
HWY_INLINE void WeighRow(const C* s, size_t width, C scale, C base, C alpha, C* HWY_RESTRICT sums, const Keep& keep) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  const VecOf<C> scale_v = hn::Set(d, scale), base_v = hn::Set(d, base);
  VecOf<C> sum = hn::Mul(hn::Load(d, sums), hn::Set(d, alpha));
  for (size_t i = 0; i < width; i += N) {
    // Not fused: the rounding of a large product would be left over, and exp of that.
    const VecOf<C> p = ExpOfNonPositive(hn::Sub(hn::Mul(hn::Load(d, s + i), scale_v), base_v));
    sum = hn::Add(sum, p);
    keep(i, p);
  }
  hn::Store(sum, d, sums);
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
