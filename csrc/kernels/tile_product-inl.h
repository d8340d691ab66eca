// The products of one tile: rows of A times a tile of K or V rows. Compiled once per target.
//
// AccumulateRows   out[r][c] = out[r][c] * alpha[r] + sum_k a[r][k] * b[k][c]: scores from a transposed tile, and P.V
// DotRows          s[r][j] = q[r] . k[j] on rows as they are stored: for few query rows
// TransposeRows    rows of K to columns, so that AccumulateRows can make scores of them
#if defined(ONNX_AI_RT_TILE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_TILE_PRODUCT_INL_H_
#undef ONNX_AI_RT_TILE_PRODUCT_INL_H_
#else
#define ONNX_AI_RT_TILE_PRODUCT_INL_H_
#endif

#include <algorithm>

#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// Register blocks: kMaxRows x kMaxVectors accumulators, a row of B and one broadcast of A fit the register file.
inline constexpr size_t kMaxRows = 6;
inline constexpr size_t kMaxVectors = (HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64) ? 4 : 2;

// A block of B as it is stored: row k at data + k * stride_bytes.
template <typename T>
struct StoredRows {
  const uint8_t* data;
  int64_t stride_bytes;
  HWY_INLINE const T* Row(size_t k) const {
    return reinterpret_cast<const T*>(data + static_cast<int64_t>(k) * stride_bytes);
  }
};

// One register block of AccumulateRows. `tail` lanes of the last vector exist in B (0: all; then NV is 1).
// alpha null: starts from 0. Where `check` is set and a result is not finite, nothing is stored and false returned.
template <size_t MR, size_t NV, bool kTail, typename C, typename T>
HWY_INLINE bool ProductBlock(const C* HWY_RESTRICT a, size_t lda, StoredRows<T> b, size_t first, size_t tail,
                             size_t depth, const C* HWY_RESTRICT alpha, bool check, C* HWY_RESTRICT out, size_t ldo) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  VecOf<C> acc[MR][NV];
  HWY_UNROLL(16)
  for (size_t r = 0; r < MR; ++r) {
    HWY_UNROLL(16)
    for (size_t v = 0; v < NV; ++v) {
      acc[r][v] = alpha == nullptr ? hn::Zero(d) : hn::Mul(hn::LoadU(d, out + r * ldo + v * N), hn::Set(d, alpha[r]));
    }
  }
  for (size_t k = 0; k < depth; ++k) {
    const T* row = b.Row(k) + first;
    VecOf<C> bv[NV];
    HWY_UNROLL(16)
    for (size_t v = 0; v < NV; ++v) bv[v] = kTail ? LoadAsN<C>(row, tail) : LoadAs<C>(row + v * N);
    HWY_UNROLL(16)
    for (size_t r = 0; r < MR; ++r) {
      const VecOf<C> av = hn::Set(d, a[r * lda + k]);
      HWY_UNROLL(16)
      for (size_t v = 0; v < NV; ++v) acc[r][v] = hn::MulAdd(av, bv[v], acc[r][v]);
    }
  }
  if (check) {
    // x - x is 0 for finite x and NaN otherwise.
    VecOf<C> poison = hn::Zero(d);
    for (size_t r = 0; r < MR; ++r) {
      for (size_t v = 0; v < NV; ++v) poison = hn::Add(poison, hn::Sub(acc[r][v], acc[r][v]));
    }
    if (!hn::AllFalse(d, hn::IsNaN(poison))) return false;
  }
  HWY_UNROLL(16)
  for (size_t r = 0; r < MR; ++r) {
    HWY_UNROLL(16)
    for (size_t v = 0; v < NV; ++v) hn::StoreU(acc[r][v], d, out + r * ldo + v * N);
  }
  return true;
}

// All rows against `NV` vectors of columns from `first` on. on_reject(row, rows) is called for a block whose check failed.
template <size_t NV, bool kTail, typename C, typename T, class Reject>
HWY_INLINE void ProductColumns(const C* a, size_t lda, size_t rows, StoredRows<T> b, size_t first, size_t tail,
                               size_t depth, const C* alpha, bool check, C* out, size_t ldo, const Reject& on_reject) {
  size_t r = 0;
  const auto block = [&](auto mr) HWY_ATTR {
    constexpr size_t MR = decltype(mr)::value;
    const C* scale = alpha == nullptr ? nullptr : alpha + r;
    if (!ProductBlock<MR, NV, kTail>(a + r * lda, lda, b, first, tail, depth, scale, check, out + r * ldo, ldo)) {
      on_reject(r, MR);
    }
    r += MR;
  };
  while (r + kMaxRows <= rows) block(std::integral_constant<size_t, kMaxRows>());
  if (r + 4 <= rows) block(std::integral_constant<size_t, 4>());
  if (r + 2 <= rows) block(std::integral_constant<size_t, 2>());
  if (r < rows) block(std::integral_constant<size_t, 1>());
}

// Columns [0, columns) of B; `out` rows have room for whole vectors. on_reject(row, rows, column, columns).
template <typename C, typename T, class Reject>
HWY_INLINE void AccumulateRows(const C* a, size_t lda, size_t rows, StoredRows<T> b, size_t columns, size_t depth,
                               const C* alpha, bool check, C* out, size_t ldo, const Reject& on_reject) {
  constexpr size_t N = kLanes<C>;
  size_t c = 0;
  const auto run = [&](auto nv, auto is_tail) HWY_ATTR {
    constexpr size_t NV = decltype(nv)::value;
    constexpr bool kTail = decltype(is_tail)::value;
    ProductColumns<NV, kTail>(a, lda, rows, b, c, columns - c, depth, alpha, check, out + c, ldo,
                              [&](size_t row, size_t count) HWY_ATTR { on_reject(row, count, c, NV * N); });
    c += NV * N;
  };
  using No = std::false_type;
  while (c + kMaxVectors * N <= columns) run(std::integral_constant<size_t, kMaxVectors>(), No());
  if constexpr (kMaxVectors > 2) {
    if (c + 2 * N <= columns) run(std::integral_constant<size_t, 2>(), No());
  }
  if (c + N <= columns) run(std::integral_constant<size_t, 1>(), No());
  if (c < columns) run(std::integral_constant<size_t, 1>(), std::true_type());
}

// Lane j of the result is the sum of the lanes of v[j]; N - 1 pairwise interleave-and-add steps. Overwrites v.
template <typename C>
HWY_INLINE VecOf<C> SumsOf(VecOf<C>* HWY_RESTRICT v) {
  const Lanes<C> d;
  HWY_UNROLL(16)
  for (size_t half = kLanes<C> / 2; half != 0; half /= 2) {
    HWY_UNROLL(16)
    for (size_t i = 0; i < half; ++i) {
      v[i] = hn::Add(hn::InterleaveWholeLower(d, v[i], v[i + half]), hn::InterleaveWholeUpper(d, v[i], v[i + half]));
    }
  }
  return v[0];
}

// R query rows against `count` stored rows: R x N/R accumulators, so that a K row is promoted once for R rows.
// q rows are padded to whole vectors with 0.
template <size_t R, typename C, typename T>
HWY_INLINE void DotRowsBlock(const C* HWY_RESTRICT q, size_t ldq, StoredRows<T> keys, size_t count, size_t head_size,
                             C* HWY_RESTRICT s, size_t lds) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  constexpr size_t KB = N / R;
  for (size_t j = 0; j < count; j += KB) {
    const size_t valid = std::min(KB, count - j);
    const T* rows[KB];
    HWY_UNROLL(16)
    for (size_t i = 0; i < KB; ++i) rows[i] = keys.Row(j + std::min(i, valid - 1));
    VecOf<C> acc[N];
    HWY_UNROLL(16)
    for (size_t i = 0; i < N; ++i) acc[i] = hn::Zero(d);
    size_t c = 0;
    for (; c + N <= head_size; c += N) {
      VecOf<C> kv[KB];
      HWY_UNROLL(16)
      for (size_t i = 0; i < KB; ++i) kv[i] = LoadAs<C>(rows[i] + c);
      HWY_UNROLL(16)
      for (size_t r = 0; r < R; ++r) {
        const VecOf<C> qv = hn::LoadU(d, q + r * ldq + c);
        HWY_UNROLL(16)
        for (size_t i = 0; i < KB; ++i) acc[r * KB + i] = hn::MulAdd(qv, kv[i], acc[r * KB + i]);
      }
    }
    if (c != head_size) {
      for (size_t r = 0; r < R; ++r) {
        const VecOf<C> qv = hn::LoadU(d, q + r * ldq + c);
        for (size_t i = 0; i < KB; ++i) {
          acc[r * KB + i] = hn::MulAdd(qv, LoadAsN<C>(rows[i] + c, head_size - c), acc[r * KB + i]);
        }
      }
    }
    HWY_ALIGN C sums[N];
    hn::Store(SumsOf<C>(acc), d, sums);
    for (size_t r = 0; r < R; ++r) std::copy_n(sums + r * KB, valid, s + r * lds + j);
  }
}

template <typename C, typename T>
HWY_INLINE void DotRows(const C* q, size_t ldq, size_t rows, StoredRows<T> keys, size_t count, size_t head_size, C* s,
                        size_t lds) {
  size_t r = 0;
  const auto block = [&](auto mr) HWY_ATTR {
    constexpr size_t R = decltype(mr)::value;
    if constexpr (R <= kLanes<C>) {
      for (; r + R <= rows; r += R) {
        DotRowsBlock<R>(q + r * ldq, ldq, keys, count, head_size, s + r * lds, lds);
      }
    }
  };
  block(std::integral_constant<size_t, 8>());
  block(std::integral_constant<size_t, 4>());
  block(std::integral_constant<size_t, 2>());
  block(std::integral_constant<size_t, 1>());
}

// to[c * ldt + j] = row j [c] for j < count. Writes whole vectors of rows: up to N - 1 columns behind `count` get
// copies of the last row.
template <typename C, typename T>
HWY_INLINE void TransposeRows(StoredRows<T> from, size_t count, size_t columns, C* HWY_RESTRICT to, size_t ldt) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  for (size_t j = 0; j < count; j += N) {
    const T* rows[N];
    for (size_t i = 0; i < N; ++i) rows[i] = from.Row(j + std::min(i, count - j - 1));
    for (size_t c = 0; c < columns; c += N) {
      const size_t valid = std::min(N, columns - c);
      VecOf<C> v[N], w[N];
      HWY_UNROLL(16)
      for (size_t i = 0; i < N; ++i) v[i] = valid == N ? LoadAs<C>(rows[i] + c) : LoadAsN<C>(rows[i] + c, valid);
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
      for (size_t i = 0; i < valid; ++i) hn::StoreU(v[i], d, to + (c + i) * ldt + j);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
