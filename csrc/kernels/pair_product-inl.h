// Products of matrices of bfloat16 whose rows or columns are pairs along the summed axis, and what a unit that makes
// them has to offer. Compiled once per target.
//
// VectorPairs  vectors: an instruction multiplies pairs of bfloat16 and adds them to floats, at twice float's rate
// TilePairs    tiles, in tile_pairs-inl.h
#if defined(ONNX_AI_RT_PAIR_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_PAIR_PRODUCT_INL_H_
#undef ONNX_AI_RT_PAIR_PRODUCT_INL_H_
#else
#define ONNX_AI_RT_PAIR_PRODUCT_INL_H_
#endif

#include "kernels/tile_engine-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

#ifdef HWY_NATIVE_DOT_BF16
inline constexpr bool kMultipliesBFloat16 = HWY_NATIVE_DOT_BF16 && HWY_TARGET <= HWY_AVX3;
#else
inline constexpr bool kMultipliesBFloat16 = false;
#endif

// A factor: the sum of `parts` matrices of pairs, `part_stride` apart. Left factors have rows x pairs, right ones
// pairs x columns.
struct PairMatrix {
  const uint32_t* data;
  int64_t stride;  // of rows
  int parts = 1;
  int64_t part_stride = 0;

  PairMatrix From(int64_t offset) const { return {data + offset, stride, parts, part_stride}; }
  PairMatrix FirstPart() const { return {data, stride}; }
};

// out[r][c] = out[r][c] * alpha[r] + sum over pairs k of a[r][k] . b[k][c]; as ProductBlock.
template <size_t MR, size_t NV>
HWY_INLINE bool PairBlock(const uint32_t* HWY_RESTRICT a, size_t lda, const uint32_t* HWY_RESTRICT b, size_t ldb,
                          size_t depth, const float* HWY_RESTRICT alpha, bool check, float* HWY_RESTRICT out,
                          size_t ldo) {
  const Lanes<float> d;
  const hn::Repartition<hwy::bfloat16_t, Lanes<float>> dbf;
  const hn::Repartition<uint32_t, Lanes<float>> du;
  constexpr size_t N = kLanes<float>;
  VecOf<float> acc[MR][NV];
  HWY_UNROLL(16)
  for (size_t r = 0; r < MR; ++r) {
    HWY_UNROLL(16)
    for (size_t v = 0; v < NV; ++v) {
      acc[r][v] = alpha == nullptr ? hn::Zero(d) : hn::Mul(hn::LoadU(d, out + r * ldo + v * N), hn::Set(d, alpha[r]));
    }
  }
  VecOf<float> unused = hn::Zero(d);
  for (size_t k = 0; k < depth; ++k) {
    hn::Vec<decltype(dbf)> bv[NV];
    HWY_UNROLL(16)
    for (size_t v = 0; v < NV; ++v) bv[v] = hn::BitCast(dbf, hn::LoadU(du, b + k * ldb + v * N));
    HWY_UNROLL(16)
    for (size_t r = 0; r < MR; ++r) {
      const auto av = hn::BitCast(dbf, hn::Set(du, a[r * lda + k]));
      HWY_UNROLL(16)
      for (size_t v = 0; v < NV; ++v) acc[r][v] = hn::ReorderWidenMulAccumulate(d, av, bv[v], acc[r][v], unused);
    }
  }
  if (check) {
    VecOf<float> poison = hn::Zero(d);
    HWY_UNROLL(16)
    for (size_t r = 0; r < MR; ++r) {
      HWY_UNROLL(16)
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

// As AccumulateRows; `columns` is a multiple of the lanes.
inline HWY_NOINLINE void AccumulatePairs(const uint32_t* a, size_t lda, size_t rows, const uint32_t* b, size_t ldb,
                                         size_t columns, size_t depth, const float* alpha, const OnReject* reject,
                                         float* out, size_t ldo) {
  constexpr size_t N = kLanes<float>;
  size_t c = 0;
  const auto run = [&](auto nv) HWY_ATTR {
    constexpr size_t NV = decltype(nv)::value;
    size_t r = 0;
    const auto block = [&](auto mr) HWY_ATTR {
      constexpr size_t MR = decltype(mr)::value;
      const float* scale = alpha == nullptr ? nullptr : alpha + r;
      if (!PairBlock<MR, NV>(a + r * lda, lda, b + c, ldb, depth, scale, reject != nullptr, out + r * ldo + c, ldo)) {
        reject->call(reject->context, r, MR, c, NV * N);
      }
      r += MR;
    };
    while (r + kMaxRows <= rows) block(std::integral_constant<size_t, kMaxRows>());
    if (r + 4 <= rows) block(std::integral_constant<size_t, 4>());
    if (r + 2 <= rows) block(std::integral_constant<size_t, 2>());
    if (r < rows) block(std::integral_constant<size_t, 1>());
    c += NV * N;
  };
  while (c + 4 * N <= columns) run(std::integral_constant<size_t, 4>());
  if (c + 2 * N <= columns) run(std::integral_constant<size_t, 2>());
  if (c < columns) run(std::integral_constant<size_t, 1>());
}

// Products of two second parts: beside the product of the factors they are at most 2^-18 of it.
enum class SmallProducts { kMade, kLeftOut };

// The interface of a unit; see AccumulateRows for what Accumulate does.
class VectorPairs {
 public:
  static constexpr int64_t kChunk = kChunkRows;
  static constexpr int kMostParts = 1;
  // Rows and pairs that a factor has to have, as many as are used being `n`.
  static int64_t RoundRows(int64_t n) { return n; }
  static int64_t RoundPairs(int64_t n) { return n; }

  void Accumulate(const PairMatrix& a, int64_t rows, const PairMatrix& b, int64_t columns, int64_t pairs, SmallProducts,
                  const float* alpha, const OnReject* reject, float* out, int64_t ldo) {
    AccumulatePairs(a.data, static_cast<size_t>(a.stride), static_cast<size_t>(rows), b.data,
                    static_cast<size_t>(b.stride), static_cast<size_t>(RoundUpToLanes<float>(columns)),
                    static_cast<size_t>(pairs), alpha, reject, out, static_cast<size_t>(ldo));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
