// Few query rows times the rows of K as they are stored: s[r][j] = q[r] . k[j] * scale. Compiled once per target.
#if defined(ONNX_AI_RT_ROW_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_ROW_DOTS_INL_H_
#undef ONNX_AI_RT_ROW_DOTS_INL_H_
#else
#define ONNX_AI_RT_ROW_DOTS_INL_H_
#endif

#include <algorithm>

#include "kernels/fold-inl.h"
#include "kernels/row_fetch.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// R query rows against `count` stored rows: R x N/R accumulators, so that a K row is promoted once for R rows.
// q rows are padded to whole column groups with 0 and, for codes of less than 8 bits, in planes.
template <size_t R, typename C, typename T, class Fetch>
HWY_INLINE void DotRowsBlock(const C* HWY_RESTRICT q, size_t ldq, const Reader<T>& keys, size_t count, size_t head_size,
                             C scale, C* HWY_RESTRICT s, size_t lds, const Fetch& fetch_ahead) {
  Fetch fetch = fetch_ahead;
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  constexpr size_t P = kPlanes<T>;
  constexpr size_t KB = N / R;
  const size_t whole = head_size / (P * N) * (P * N);
  fetch.SpreadOver(std::max<size_t>(1, (count + KB - 1) / KB * (whole / (P * N))));
  // With more than a few rows, sums are folded behind the products of the next keys: these need not wait.
  constexpr bool kFoldLater = k32Registers && R >= 4 && P == 1;
  HWY_ALIGN C sums[N * N];
  const auto finish = [&](size_t j) HWY_ATTR {
    const size_t valid = std::min(KB, count - j);
    VecOf<C> v[N];
    HWY_UNROLL(16)
    for (size_t i = 0; i < N; ++i) v[i] = hn::Load(d, sums + i * N);
    const VecOf<C> dots = hn::Mul(Fold<kFoldLevels<C>, 0, C>(v, AddVectors()), hn::Set(d, scale));
    if (R == 1 && valid == KB) {
      hn::StoreU(dots, d, s + j);
      return;
    }
    HWY_ALIGN C lanes[N];
    hn::Store(dots, d, lanes);
    HWY_UNROLL(16)
    for (size_t r = 0; r < R; ++r) {
      if (valid == KB) {
        std::memcpy(s + r * lds + j, lanes + r * KB, KB * sizeof(C));
      } else {
        std::copy_n(lanes + r * KB, valid, s + r * lds + j);
      }
    }
  };
  for (size_t j = 0; j < count; j += KB) {
    const size_t valid = std::min(KB, count - j);
    const uint8_t* rows[KB];
    rows[0] = keys.Row(j);
    HWY_UNROLL(16)
    for (size_t i = 1; i < KB; ++i) rows[i] = i < valid ? rows[i - 1] + keys.stride() : rows[i - 1];
    VecOf<C> acc[N];
    HWY_UNROLL(16)
    for (size_t i = 0; i < N; ++i) acc[i] = hn::Zero(d);
    const auto add = [&](size_t c, const VecOf<C>(&kv)[KB][P]) HWY_ATTR {
      HWY_UNROLL(16)
      for (size_t p = 0; p < P; ++p) {
        HWY_UNROLL(16)
        for (size_t r = 0; r < R; ++r) {
          const VecOf<C> qv = hn::LoadU(d, q + r * ldq + c + p * N);
          HWY_UNROLL(16)
          for (size_t i = 0; i < KB; ++i) acc[r * KB + i] = hn::MulAdd(qv, kv[i][p], acc[r * KB + i]);
        }
      }
    };
    if (whole != head_size) {
      VecOf<C> kv[KB][P];
      HWY_UNROLL(16)
      for (size_t i = 0; i < KB; ++i) keys.template LoadN<C>(rows[i], whole, head_size - whole, kv[i]);
      add(whole, kv);
    }
    for (size_t c = 0; c < whole; c += P * N) {
      fetch.Step();
      VecOf<C> kv[KB][P];
      HWY_UNROLL(16)
      for (size_t i = 0; i < KB; ++i) keys.template Load<C>(rows[i], c, kv[i]);
      add(c, kv);
    }
    if constexpr (kFoldLater) {
      if (j != 0) finish(j - KB);
    }
    HWY_UNROLL(16)
    for (size_t i = 0; i < N; ++i) hn::Store(acc[i], d, sums + i * N);
    if constexpr (!kFoldLater) finish(j);
  }
  if constexpr (kFoldLater) finish((count - 1) / KB * KB);
}

// Does `fetch` while the first rows go through the keys.
template <typename C, typename T>
HWY_NOINLINE void DotRows(const C* q, size_t ldq, size_t rows, Reader<T> keys, size_t count, size_t head_size, C scale,
                          C* s, size_t lds, const RowFetch& fetch) {
  size_t r = 0;
  const auto block = [&](auto mr) HWY_ATTR {
    constexpr size_t R = decltype(mr)::value;
    if constexpr (R <= kLanes<C>) {
      for (; r + R <= rows; r += R) {
        if (r == 0) {
          DotRowsBlock<R>(q, ldq, keys, count, head_size, scale, s, lds, fetch);
        } else {
          DotRowsBlock<R>(q + r * ldq, ldq, keys, count, head_size, scale, s + r * lds, lds, NoFetch());
        }
      }
    }
  };
  block(std::integral_constant<size_t, 8>());
  block(std::integral_constant<size_t, 4>());
  block(std::integral_constant<size_t, 2>());
  block(std::integral_constant<size_t, 1>());
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
