// Rows to columns: keys, so that AccumulateRows can make scores of them; words of codes. Compiled once per target.
#if defined(ONNX_AI_RT_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_TRANSPOSE_INL_H_
#undef ONNX_AI_RT_TRANSPOSE_INL_H_
#else
#define ONNX_AI_RT_TRANSPOSE_INL_H_
#endif

#include <algorithm>

#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// The 4 x 4 matrices of 32-bit lanes within the blocks of 128 bits of four vectors.
template <typename C>
HWY_INLINE void TransposeInBlocks(VecOf<C>& v0, VecOf<C>& v1, VecOf<C>& v2, VecOf<C>& v3) {
  const Lanes<C> d;
  const hn::RepartitionToWide<Lanes<C>> dw;
  const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, v0, v1));
  const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, v2, v3));
  const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, v0, v1));
  const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, v2, v3));
  v0 = hn::BitCast(d, hn::InterleaveLower(dw, low01, low23));
  v1 = hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23));
  v2 = hn::BitCast(d, hn::InterleaveLower(dw, high01, high23));
  v3 = hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23));
}

// The 4 x 4 matrix of the blocks of 128 bits of four vectors of 512.
template <typename C>
HWY_INLINE void TransposeBlocks(VecOf<C>& v0, VecOf<C>& v1, VecOf<C>& v2, VecOf<C>& v3) {
  const Lanes<C> d;
  const VecOf<C> lower02 = hn::ConcatLowerLower(d, v2, v0);
  const VecOf<C> lower13 = hn::ConcatLowerLower(d, v3, v1);
  const VecOf<C> upper02 = hn::ConcatUpperUpper(d, v2, v0);
  const VecOf<C> upper13 = hn::ConcatUpperUpper(d, v3, v1);
  v0 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(lower13), lower02);
  v1 = hn::OddEvenBlocks(lower13, hn::SwapAdjacentBlocks(lower02));
  v2 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(upper13), upper02);
  v3 = hn::OddEvenBlocks(upper13, hn::SwapAdjacentBlocks(upper02));
}

// The N x N matrix of the vectors v; w is room.
template <typename C>
HWY_INLINE void Transpose(VecOf<C> (&v)[kLanes<C>], VecOf<C> (&w)[kLanes<C>]) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  if constexpr (sizeof(C) == 4 && N == 16) {
    // Within blocks of 128 bits first, where shuffles are cheap: then vector 4 i + k has column 4 b + k of rows 4 i to
    // 4 i + 3 in its block b.
    HWY_UNROLL(16)
    for (size_t i = 0; i < 16; ++i) w[i] = v[i];
    HWY_UNROLL(4)
    for (size_t i = 0; i < 16; i += 4) TransposeInBlocks<C>(w[i], w[i + 1], w[i + 2], w[i + 3]);
    HWY_UNROLL(4)
    for (size_t k = 0; k < 4; ++k) {
      TransposeBlocks<C>(w[k], w[4 + k], w[8 + k], w[12 + k]);
      HWY_UNROLL(4)
      for (size_t i = 0; i < 16; i += 4) v[i + k] = w[i + k];
    }
  } else {
    // log2(N) perfect shuffles of the rows.
    HWY_UNROLL(16)
    for (size_t step = 1; step < N; step *= 2) {
      HWY_UNROLL(16)
      for (size_t i = 0; i < N / 2; ++i) {
        w[2 * i] = hn::InterleaveWholeLower(d, v[i], v[i + N / 2]);
        w[2 * i + 1] = hn::InterleaveWholeUpper(d, v[i], v[i + N / 2]);
      }
      HWY_UNROLL(16)
      for (size_t i = 0; i < N; ++i) v[i] = w[i];
    }
  }
}

// One block of TransposeRows that is not whole: `count` rows, `columns` columns.
template <typename C>
HWY_NOINLINE void TransposePart(const C* HWY_RESTRICT from, size_t ldf, size_t count, size_t columns,
                                C* HWY_RESTRICT to, size_t ldt) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  VecOf<C> v[N], w[N];
  for (size_t i = 0; i < N; ++i) v[i] = hn::LoadN(d, from + std::min(i, count - 1) * ldf, columns);
  Transpose<C>(v, w);
  for (size_t i = 0; i < columns; ++i) hn::StoreU(v[i], d, to + i * ldt);
}

// Compilers keep few pointers and add multiples of a stride to each as they load; loads that cross cache lines are
// quicker from a pointer alone.
template <typename T>
HWY_INLINE void OnePointer(T*& pointer) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  asm("" : "+r"(pointer));
#endif
}

// to[c * ldt + j] = from[j * ldf + c] for j < count, c < columns. Writes whole vectors of rows: up to N - 1 columns
// behind `count` get copies of the last row.
template <typename C>
HWY_NOINLINE void TransposeRows(const C* HWY_RESTRICT from, size_t ldf, size_t count, size_t columns,
                                C* HWY_RESTRICT to, size_t ldt) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  for (size_t c = 0; c < columns; c += N) {
    for (size_t j = 0; j < count; j += N) {
      const C* row = from + j * ldf + c;
      C* column = to + c * ldt + j;
      if (count - j < N || columns - c < N) {
        TransposePart(row, ldf, std::min(N, count - j), std::min(N, columns - c), column, ldt);
        continue;
      }
      VecOf<C> v[N], w[N];
      HWY_UNROLL(16)
      for (size_t i = 0; i < N; ++i, row += ldf) {
        OnePointer(row);
        v[i] = hn::LoadU(d, row);
      }
      Transpose<C>(v, w);
      HWY_UNROLL(16)
      for (size_t i = 0; i < N; ++i, column += ldt) hn::StoreU(v[i], d, column);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
