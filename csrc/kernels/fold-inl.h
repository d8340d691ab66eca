// All lanes of vectors to one number each, for as many vectors at once as there are lanes. Compiled once per target.
#if defined(ONNX_AI_RT_FOLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_FOLD_INL_H_
#undef ONNX_AI_RT_FOLD_INL_H_
#else
#define ONNX_AI_RT_FOLD_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

struct AddVectors {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};

// One level of Fold: from vectors that hold 2^(kLevel - 1) folds each, neighbouring lanes within blocks of 128 bits and
// then neighbouring blocks are folded. Shuffles within blocks are the cheap ones.
template <size_t kLevel, typename C, class Op>
HWY_INLINE VecOf<C> FoldPair(VecOf<C> a, VecOf<C> b, Op op) {
  const Lanes<C> d;
  constexpr size_t kFolds = size_t{1} << kLevel;
  if constexpr (kLevel == 1) {
    return op(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  } else if constexpr (kFolds * sizeof(C) <= 16) {
    const hn::RepartitionToWide<Lanes<C>> dw;
    const auto wide_a = hn::BitCast(dw, a), wide_b = hn::BitCast(dw, b);
    return op(hn::BitCast(d, hn::InterleaveLower(dw, wide_a, wide_b)),
              hn::BitCast(d, hn::InterleaveUpper(dw, wide_a, wide_b)));
  } else if constexpr (kFolds == kLanes<C>) {
    return op(hn::ConcatUpperLower(d, b, a), hn::ConcatLowerUpper(d, b, a));
  } else {
    return op(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
  }
}

// Lane j of Fold<log2(N), 0> is the fold of all lanes of v[j], for N vectors of N lanes, in N - 1 steps.
// A template recursion rather than loops, so that the vectors stay in registers.
template <size_t kLevel, size_t kIndex, typename C, class Op>
HWY_INLINE VecOf<C> Fold(const VecOf<C>* HWY_RESTRICT v, Op op) {
  if constexpr (kLevel == 0) {
    return v[kIndex];
  } else {
    const VecOf<C> a = Fold<kLevel - 1, kIndex, C>(v, op);
    const VecOf<C> b = Fold<kLevel - 1, kIndex + (size_t{1} << (kLevel - 1)), C>(v, op);
    return FoldPair<kLevel, C>(a, b, op);
  }
}

template <typename C>
inline constexpr size_t kFoldLevels = hwy::CeilLog2(kLanes<C>);

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
