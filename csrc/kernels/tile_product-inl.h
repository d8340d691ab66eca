// Rows of A times a tile of K columns or V rows: out[r][c] = out[r][c] * alpha[r] + sum_k a[r][k] * b[k][c]. Compiled
// once per target.
#if defined(ONNX_AI_RT_TILE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_TILE_PRODUCT_INL_H_
#undef ONNX_AI_RT_TILE_PRODUCT_INL_H_
#else
#define ONNX_AI_RT_TILE_PRODUCT_INL_H_
#endif

#include <algorithm>

#include "kernels/row_fetch.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// Register blocks: accumulators, a row of B and one broadcast of A fit the register file.
inline constexpr size_t kMaxRows = 6;
inline constexpr size_t kMaxVectors = k32Registers ? 4 : 2;
inline constexpr size_t kAccumulators = kMaxRows * kMaxVectors;

// Columns that go through registers together, at most.
template <typename C>
inline constexpr size_t kColumnGroup = 4 * kLanes<C>;

// Told of a register block whose check failed: rows [row, row + rows), columns [column, column + columns).
struct OnReject {
  void (*call)(const void* context, size_t row, size_t rows, size_t column, size_t columns) = nullptr;
  const void* context = nullptr;
};

// One register block of AccumulateRows: MR rows, NV vectors of columns from `first` on, of which `columns` exist.
// alpha null: starts from 0. Where `check` is set and a result is not finite, nothing is stored and false returned.
template <size_t MR, size_t NV, bool kTail, typename C, class Stride, typename T, class Fetch>
HWY_INLINE bool ProductBlock(const C* HWY_RESTRICT a, Stride lda, const Reader<T>& b, size_t first, size_t columns,
                             size_t depth, const C* HWY_RESTRICT alpha, bool check, C* HWY_RESTRICT out, size_t ldo,
                             Fetch& shared_fetch) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  constexpr size_t P = kPlanes<T>;
  constexpr size_t kGroups = NV / P;
  VecOf<C> acc[MR][kGroups][P];
  HWY_UNROLL(16)
  for (size_t r = 0; r < MR; ++r) {
    HWY_UNROLL(16)
    for (size_t g = 0; g < kGroups; ++g) {
      HWY_UNROLL(16)
      for (size_t p = 0; p < P; ++p) {
        acc[r][g][p] = alpha == nullptr ? hn::Zero(d)
                                        : hn::Mul(hn::LoadU(d, out + r * ldo + (g * P + p) * N), hn::Set(d, alpha[r]));
      }
      ToPlanes<C>(acc[r][g]);
    }
  }
  Fetch fetch = shared_fetch;  // in registers
  for (size_t k = 0; k < depth; ++k) {
    fetch.Step();
    const uint8_t* const row = b.Row(k);
    VecOf<C> bv[kGroups][P];
    HWY_UNROLL(16)
    for (size_t g = 0; g < kGroups; ++g) {
      if constexpr (kTail) {
        b.template LoadN<C>(row, first, columns, bv[g]);
      } else {
        b.template Load<C>(row, first + g * P * N, bv[g]);
      }
    }
    HWY_UNROLL(16)
    for (size_t r = 0; r < MR; ++r) {
      const VecOf<C> av = hn::Set(d, a[r * lda + k]);
      HWY_UNROLL(16)
      for (size_t g = 0; g < kGroups; ++g) {
        HWY_UNROLL(16)
        for (size_t p = 0; p < P; ++p) acc[r][g][p] = hn::MulAdd(av, bv[g][p], acc[r][g][p]);
      }
    }
  }
  shared_fetch = fetch;
  if (check) {
    // x - x is 0 for finite x and NaN otherwise.
    VecOf<C> poison = hn::Zero(d);
    HWY_UNROLL(16)
    for (size_t r = 0; r < MR; ++r) {
      HWY_UNROLL(16)
      for (size_t g = 0; g < kGroups; ++g) {
        HWY_UNROLL(16)
        for (size_t p = 0; p < P; ++p) poison = hn::Add(poison, hn::Sub(acc[r][g][p], acc[r][g][p]));
      }
    }
    if (!hn::AllFalse(d, hn::IsNaN(poison))) return false;
  }
  HWY_UNROLL(16)
  for (size_t r = 0; r < MR; ++r) {
    HWY_UNROLL(16)
    for (size_t g = 0; g < kGroups; ++g) {
      FromPlanes<C>(acc[r][g]);
      HWY_UNROLL(16)
      for (size_t p = 0; p < P; ++p) hn::StoreU(acc[r][g][p], d, out + r * ldo + (g * P + p) * N);
    }
  }
  return true;
}

// All rows against `NV` vectors of columns from `first` on, of which `columns` exist.
template <size_t NV, bool kTail, typename C, class Stride, typename T, class Fetch>
HWY_INLINE void ProductColumns(const C* a, Stride lda, size_t rows, const Reader<T>& b, size_t first, size_t columns,
                               size_t depth, const C* alpha, const OnReject* reject, C* out, size_t ldo, Fetch& fetch) {
  constexpr size_t kRows = std::min(kMaxRows, kAccumulators / NV);
  size_t r = 0;
  const auto block = [&](auto mr) HWY_ATTR {
    constexpr size_t MR = decltype(mr)::value;
    const C* scale = alpha == nullptr ? nullptr : alpha + r;
    const bool check = reject != nullptr;
    if (!ProductBlock<MR, NV, kTail>(a + r * lda, lda, b, first, columns, depth, scale, check, out + r * ldo, ldo,
                                     fetch)) {
      reject->call(reject->context, r, MR, first, NV * kLanes<C>);
    }
    r += MR;
  };
  while (r + kRows <= rows) block(std::integral_constant<size_t, kRows>());
  if constexpr (kRows > 4) {
    if (r + 4 <= rows) block(std::integral_constant<size_t, 4>());
  }
  if constexpr (kRows > 2) {
    if (r + 2 <= rows) block(std::integral_constant<size_t, 2>());
  }
  while (r < rows) block(std::integral_constant<size_t, 1>());
}

// Columns [0, columns) of B; `out` rows have room for whole column groups. reject null: no check. Does `fetch` on the
// way.
template <typename C, class Stride, typename T, class Fetch = NoFetch>
HWY_NOINLINE void AccumulateRows(const C* a, Stride lda, size_t rows, Reader<T> b, size_t columns, size_t depth,
                                 const C* alpha, const OnReject* reject, C* out, size_t ldo,
                                 const Fetch& fetch_ahead = Fetch()) {
  Fetch fetch = fetch_ahead;
  constexpr size_t N = kLanes<C>;
  constexpr size_t P = kPlanes<T>;
  constexpr size_t kMost = std::max(P, kMaxVectors);
  fetch.SpreadOver(std::max<size_t>(1, columns / (kMost * N) * ((rows + kMaxRows - 1) / kMaxRows) * depth));
  size_t c = 0;
  const auto run = [&](auto nv, auto is_tail) HWY_ATTR {
    constexpr size_t NV = decltype(nv)::value;
    constexpr bool kTail = decltype(is_tail)::value;
    ProductColumns<NV, kTail>(a, lda, rows, b, c, columns - c, depth, alpha, reject, out + c, ldo, fetch);
    c += NV * N;
  };
  while (c + kMost * N <= columns) run(std::integral_constant<size_t, kMost>(), std::false_type());
  if constexpr (kMost > 2 && P <= 2) {
    if (c + 2 * N <= columns) run(std::integral_constant<size_t, 2>(), std::false_type());
  }
  if constexpr (kMost > 1 && P == 1) {
    if (c + N <= columns) run(std::integral_constant<size_t, 1>(), std::false_type());
  }
  if (c < columns) run(std::integral_constant<size_t, P>(), std::true_type());
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
