// The products of one tile: rows of A times a tile of K or V rows. Compiled once per target.
//
// AccumulateRows   out[r][c] = out[r][c] * alpha[r] + sum_k a[r][k] * b[k][c]: scores from a transposed tile, and P.V
// DotRows          s[r][j] = q[r] . k[j] * scale on rows as they are stored: for few query rows
// TransposeRows    rows of K to columns, so that AccumulateRows can make scores of them
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
inline constexpr bool k32Registers = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64;
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
    const hn::RepartitionToWide<Lanes<C>> dw;
    HWY_UNROLL(4)
    for (size_t i = 0; i < 16; i += 4) {
      const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, v[i], v[i + 1]));
      const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, v[i + 2], v[i + 3]));
      const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, v[i], v[i + 1]));
      const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, v[i + 2], v[i + 3]));
      w[i] = hn::BitCast(d, hn::InterleaveLower(dw, low01, low23));
      w[i + 1] = hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23));
      w[i + 2] = hn::BitCast(d, hn::InterleaveLower(dw, high01, high23));
      w[i + 3] = hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23));
    }
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
