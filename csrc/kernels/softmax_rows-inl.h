// The online softmax of an item's rows: what is kept of each, and a tile's dot products to weights. Compiled once per
// target and compute type.
#if defined(ONNX_AI_RT_SOFTMAX_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_SOFTMAX_ROWS_INL_H_
#undef ONNX_AI_RT_SOFTMAX_ROWS_INL_H_
#else
#define ONNX_AI_RT_SOFTMAX_ROWS_INL_H_
#endif

#include "kernels/digit_weights-inl.h"
#include "kernels/softmax_state-inl.h"
#include "kernels/tile_engine-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

template <typename C>
class SoftmaxRows {
  static constexpr int64_t kN = static_cast<int64_t>(kLanes<C>);

 public:
  // Of a chunk, in whole vectors.
  static constexpr int64_t kMostRows = (kMostChunkRows + kN - 1) / kN * kN;

  explicit SoftmaxRows(RowBuffers<C>& rows)
      : rows_(rows),
        scale_(static_cast<C>(rows.item.scale)),
        softcap_(static_cast<C>(rows.item.softcap)),
        sums_(rows.scratch.template TakeZeros<C>(rows.item.rows() * kN)),
        max_(rows.scratch.template Take<C>(RoundUpToLanes<C>(rows.item.rows()) + kN)),
        saw_keys_(rows.scratch.template TakeZeros<uint8_t>(rows.item.rows())) {
    std::fill(max_, max_ + rows.item.rows(), kMinusInfinity<C>);
  }

  // Dot products of the chunk from `row` on with `padded` keys (whole vectors) to weights, what `engine` will multiply
  // the values with; alpha gets the factors of the old outputs: room for kMostRows.
  void Weigh(int64_t row, int64_t count, int64_t padded, bool all_visible, TileEngine<C>& engine,
             C* HWY_RESTRICT alpha) {
    const Lanes<C> d;
    HWY_ALIGN C lane_max[kMostRows * kN];
    HWY_ALIGN C base[kMostRows], reach[kMostRows];
    // Scores that are nothing but products are scaled on the way into exp.
    const bool plain = all_visible && softcap_ == C{0} && scale_ > C{0};
    for (int64_t i = 0; i < count; ++i) {
      C* const s = rows_.scores + i * kTileKeys;
      VecOf<C> most = hn::Set(d, kMinusInfinity<C>);
      if (plain) {
        most = LargestByLane(s, padded);
      } else if (all_visible) {
        most = ScaleRow(s, padded);
      } else if (rows_.row_bias[i] != nullptr) {
        most = BiasScores(s, rows_.row_bias[i], padded, rows_.is_tame[i]);
      }
      hn::Store(most, d, lane_max + i * kN);
    }
    const C scale = plain ? scale_ : C{1};
    UpdateMaxima(lane_max, static_cast<size_t>(count), scale, max_ + row, alpha, base, reach);
    DigitWeights* const digits = engine.WeightDigits();
    if constexpr (sizeof(C) == sizeof(float)) {
      if (digits != nullptr) {
        digits->Begin(reach, static_cast<size_t>(count));
        WeighRows<true>(row, count, padded, all_visible, scale, base, engine.ValueScale(), alpha, digits);
        return;
      }
    }
    WeighRows<false>(row, count, padded, all_visible, scale, base, engine.ValueScale(), alpha, nullptr);
  }

  C Max(int64_t r) const { return max_[r]; }
  C Sum(int64_t r) const { return hn::ReduceSum(Lanes<C>(), hn::Load(Lanes<C>(), sums_ + r * kN)); }
  C Divisor(int64_t r) const { return onnx_ai_rt::HWY_NAMESPACE::Divisor(max_[r], Sum(r), SawKeys(r)); }
  bool SawKeys(int64_t r) const { return saw_keys_[r] != 0; }

 private:
  // The second half of Weigh: exp, with the constants in registers for all rows.
  template <bool kDigits>
  HWY_NOINLINE void WeighRows(int64_t row, int64_t count, int64_t padded, bool all_visible, C scale,
                              const C* HWY_RESTRICT base, C value_scale, C* HWY_RESTRICT alpha, DigitWeights* digits) {
    const Lanes<C> d;
    const VecOf<C> value_scale_v = hn::Set(d, value_scale);
    for (int64_t i = 0; i < count; ++i) {
      C* const s = rows_.scores + i * kTileKeys;
      if (!all_visible && rows_.row_bias[i] == nullptr) {
        std::fill(s, s + padded, C{0});
        alpha[i] = C{1};
        continue;
      }
      saw_keys_[row + i] = 1;
      DigitWeights::Row row_digits{};
      if constexpr (kDigits) row_digits = digits->RowOf(static_cast<size_t>(i));
      WeighRow(s, static_cast<size_t>(padded), scale, base[i], alpha[i], sums_ + (row + i) * kN,
               [&](size_t key, VecOf<C> weights) HWY_ATTR {
                 hn::Store(hn::Mul(weights, value_scale_v), d, s + key);
                 if constexpr (kDigits) row_digits.Put(key, weights);
               });
      if constexpr (kDigits) digits->End(row_digits);
    }
  }

  static VecOf<C> LargestByLane(const C* HWY_RESTRICT s, int64_t padded) {
    const Lanes<C> d;
    VecOf<C> most = hn::Set(d, kMinusInfinity<C>);
    for (int64_t k = 0; k < padded; k += kN) most = hn::Max(most, hn::Load(d, s + k));
    return most;
  }

  // Scales one row, all of whose keys take part, in place; returns the largest by lane.
  VecOf<C> ScaleRow(C* HWY_RESTRICT s, int64_t padded) const {
    const Lanes<C> d;
    VecOf<C> most = hn::Set(d, kMinusInfinity<C>);
    for (int64_t k = 0; k < padded; k += kN) {
      const VecOf<C> score = ScaledScore<C>(hn::Load(d, s + k), scale_, softcap_);
      hn::Store(score, d, s + k);
      most = hn::Max(most, score);
    }
    return most;
  }

  // Scales one row and adds its bias in place; returns the largest by lane.
  VecOf<C> BiasScores(C* HWY_RESTRICT s, const C* HWY_RESTRICT bias, int64_t padded, bool is_tame) const {
    const Lanes<C> d;
    const VecOf<C> minus_infinity = hn::Set(d, kMinusInfinity<C>);
    VecOf<C> most = minus_infinity;
    for (int64_t k = 0; k < padded; k += kN) {
      const VecOf<C> b = hn::LoadU(d, bias + k);
      const VecOf<C> scaled = ScaledScore<C>(hn::Load(d, s + k), scale_, softcap_);
      const VecOf<C> score = is_tame ? hn::IfThenElse(hn::Eq(b, minus_infinity), minus_infinity, hn::Add(scaled, b))
                                     : BiasedScore<C>(scaled, b, rows_.item.mask.sum_in_float);
      hn::Store(score, d, s + k);
      most = hn::Max(most, score);
    }
    return most;
  }

  RowBuffers<C>& rows_;
  const C scale_, softcap_;
  C* const sums_;            // rows x lanes
  C* const max_;             // rows
  uint8_t* const saw_keys_;  // rows
};

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
