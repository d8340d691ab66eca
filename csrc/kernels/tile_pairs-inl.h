// Products of pairs of bfloat16 on tiles: 2 x 2 tiles of sums, 2 of each factor. Compiled once per target.
//
// A block of 32 x 32 sums takes 4 loads of tiles for 4 products of them, 8 cycles against 16 on Sapphire Rapids, so
// that products are the bound.
#if defined(ONNX_AI_RT_TILE_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_TILE_PAIRS_INL_H_
#undef ONNX_AI_RT_TILE_PAIRS_INL_H_
#else
#define ONNX_AI_RT_TILE_PAIRS_INL_H_
#endif

#include "kernels/pair_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// Tiles: AmxTiles or EmulatedTiles. A unit as VectorPairs is. Factors have whole tiles of rows, pairs and columns, with
// zeros where pairs are not used; so has `out`, unless alpha is given: then its rows are as many as are used.
template <class Tiles>
class TilePairs {
 public:
  static constexpr int64_t kChunk = 32;
  static constexpr int kMostParts = 2;
  static int64_t RoundRows(int64_t n) { return RoundUp(n, 2 * kTile); }
  static int64_t RoundPairs(int64_t n) { return RoundUp(n, kTile); }

  void Accumulate(const PairMatrix& a, int64_t rows, const PairMatrix& b, int64_t columns, int64_t pairs,
                  SmallProducts small, const float* alpha, const OnReject* reject, float* out, int64_t ldo) {
    const int most = small == SmallProducts::kMade ? a.parts + b.parts : std::max(a.parts, b.parts);
    for (int64_t c = 0; c < columns; c += kBlock) {
      for (int64_t r = 0; r < rows; r += kBlock) {
        const PairMatrix block_a = a.From(r * a.stride), block_b = b.From(c);
        const int64_t block_rows = std::min(kBlock, rows - r), block_columns = std::min(kBlock, columns - c);
        float* const to = out + r * ldo + c;
        bool stored = true;
        if (alpha == nullptr) {
          Sum(block_a, block_rows, block_b, block_columns, pairs, most, to, ldo);
          stored = reject == nullptr || AllFinite(to, ldo, block_rows, block_columns);
        } else {
          Sum(block_a, block_rows, block_b, block_columns, pairs, most, sums_, kBlock);
          stored = AddSums(block_rows, block_columns, alpha + r, reject != nullptr, to, ldo);
        }
        if (!stored) {
          reject->call(reject->context, static_cast<size_t>(r), static_cast<size_t>(block_rows), static_cast<size_t>(c),
                       static_cast<size_t>(block_columns));
        }
      }
    }
  }

 private:
  static constexpr int64_t kTile = 16, kBlock = 2 * kTile;  // rows, pairs, or columns of float
  static constexpr int64_t kN = static_cast<int64_t>(kLanes<float>);

  static int64_t RoundUp(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

  void Sum(const PairMatrix& a, int64_t rows, const PairMatrix& b, int64_t columns, int64_t pairs, int most, float* to,
           int64_t ldt) {
    if (rows > kTile) {
      columns > kTile ? SumBlock<2, 2>(a, b, pairs, most, to, ldt) : SumBlock<2, 1>(a, b, pairs, most, to, ldt);
    } else {
      columns > kTile ? SumBlock<1, 2>(a, b, pairs, most, to, ldt) : SumBlock<1, 1>(a, b, pairs, most, to, ldt);
    }
  }

  // Parts i and j are multiplied where i + j < most.
  template <int kRows, int kColumns>
  HWY_NOINLINE void SumBlock(const PairMatrix& a, const PairMatrix& b, int64_t pairs, int most, float* to,
                             int64_t ldt) {
    constexpr size_t kBytes = sizeof(float);
    const size_t a_stride = static_cast<size_t>(a.stride) * kBytes, b_stride = static_cast<size_t>(b.stride) * kBytes;
    const int64_t below_a = kTile * a.stride, below_b = kTile * b.stride;
    tiles_.template Zero<0>();
    if constexpr (kColumns == 2) tiles_.template Zero<1>();
    if constexpr (kRows == 2) tiles_.template Zero<2>();
    if constexpr (kRows == 2 && kColumns == 2) tiles_.template Zero<3>();
    for (int i = 0; i < a.parts; ++i) {
      for (int j = 0; j < b.parts && i + j < most; ++j) {
        const uint32_t* from_a = a.data + i * a.part_stride;
        const uint32_t* from_b = b.data + j * b.part_stride;
        for (int64_t k = 0; k < pairs; k += kTile, from_a += kTile, from_b += below_b) {
          tiles_.template Load<4>(from_a, a_stride);
          tiles_.template Load<6>(from_b, b_stride);
          tiles_.template Multiply<0, 4, 6>();
          if constexpr (kColumns == 2) tiles_.template Load<7>(from_b + kTile, b_stride);
          if constexpr (kColumns == 2) tiles_.template Multiply<1, 4, 7>();
          if constexpr (kRows == 2) tiles_.template Load<5>(from_a + below_a, a_stride);
          if constexpr (kRows == 2) tiles_.template Multiply<2, 5, 6>();
          if constexpr (kRows == 2 && kColumns == 2) tiles_.template Multiply<3, 5, 7>();
        }
      }
    }
    const size_t t_stride = static_cast<size_t>(ldt) * kBytes;
    tiles_.template Store<0>(to, t_stride);
    if constexpr (kColumns == 2) tiles_.template Store<1>(to + kTile, t_stride);
    if constexpr (kRows == 2) tiles_.template Store<2>(to + kTile * ldt, t_stride);
    if constexpr (kRows == 2 && kColumns == 2) tiles_.template Store<3>(to + kTile * ldt + kTile, t_stride);
  }

  static HWY_NOINLINE bool AllFinite(const float* from, int64_t ldf, int64_t rows, int64_t columns) {
    const Lanes<float> d;
    VecOf<float> poison = hn::Zero(d);  // x - x is 0 for finite x and NaN otherwise
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; c += kN) {
        const VecOf<float> x = hn::LoadU(d, from + r * ldf + c);
        poison = hn::Add(poison, hn::Sub(x, x));
      }
    }
    return hn::AllFalse(d, hn::IsNaN(poison));
  }

  // out = out * alpha + sums, in vectors: cheaper than to scale `out` in memory and to load it as tiles. Where `check`
  // is set and a result is not finite, nothing is stored and false returned.
  HWY_NOINLINE bool AddSums(int64_t rows, int64_t columns, const float* HWY_RESTRICT alpha, bool check,
                            float* HWY_RESTRICT out, int64_t ldo) {
    const Lanes<float> d;
    if (check) {
      VecOf<float> poison = hn::Zero(d);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; c += kN) {
          const VecOf<float> x = Added(alpha[r], sums_ + r * kBlock + c, out + r * ldo + c);
          poison = hn::Add(poison, hn::Sub(x, x));
        }
      }
      if (!hn::AllFalse(d, hn::IsNaN(poison))) return false;
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; c += kN) {
        hn::StoreU(Added(alpha[r], sums_ + r * kBlock + c, out + r * ldo + c), d, out + r * ldo + c);
      }
    }
    return true;
  }
  static HWY_INLINE VecOf<float> Added(float alpha, const float* sum, const float* out) {
    const Lanes<float> d;
    return hn::MulAdd(hn::LoadU(d, out), hn::Set(d, alpha), hn::Load(d, sum));
  }

  alignas(64) float sums_[kBlock * kBlock];
  Tiles tiles_;
};

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
