// Many query rows of bfloat16, or float16, on units that multiply pairs of bfloat16 and add them to floats.
//
// Keys and values are pairs along the summed axis: keys of columns (2i, 2i+1), values of tokens (2i, 2i+1). Codes are
// exact in bfloat16; their scales are folded into scores and weights. float16 is the exact sum of two parts: four
// products make scores as exact as in float. Weights are rounded to as many parts as the query has: to bfloat16, whose
// error (2^-8 of each at most) is that of the output's own rounding, or to two parts, with 2^-17; three products then
// suffice.
#if defined(ONNX_AI_RT_BFLOAT16_ENGINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_BFLOAT16_ENGINE_INL_H_
#undef ONNX_AI_RT_BFLOAT16_ENGINE_INL_H_
#else
#define ONNX_AI_RT_BFLOAT16_ENGINE_INL_H_
#endif

#include <cmath>

#include "kernels/pair_product-inl.h"
#include "kernels/pair_rows-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// Unit: VectorPairs or TilePairs.
template <class Unit>
class BFloat16Engine final : public TileEngine<float> {
 public:
  static bool Serves(const AttentionItem& item) {
    const int parts = MostParts(BFloat16Parts(item.query_dtype), BFloat16Parts(item.runs, item.run_count));
    return parts != 0 && parts <= Unit::kMostParts;
  }

  BFloat16Engine(RowBuffers<float>& rows, const KeyTile& tile)
      : TileEngine<float>(rows, tile),
        used_pairs_((rows.item.head_size + 1) / 2),
        pairs_(Unit::RoundPairs(used_pairs_)),
        query_parts_(BFloat16Parts(rows.item.query_dtype)),
        tile_parts_(BFloat16Parts(rows.item.runs, rows.item.run_count)),
        query_part_(Unit::RoundRows(rows.item.rows()) * pairs_),
        key_part_(pairs_ * kLdt),
        value_part_(kTileKeys / 2 * rows.ldo),
        tile_rows_(rows.scratch, tile, std::max(2 * RoundUpToGroup<float>(used_pairs_), 2 * rows.ldo), tile_parts_),
        queries_(rows.scratch.TakeZeros<uint32_t>(query_parts_ * query_part_)),
        keys_(rows.scratch.TakeZeros<uint32_t>(tile_parts_ * key_part_)),
        values_(rows.scratch.TakeZeros<uint32_t>(tile_parts_ * value_part_)),
        weights_(rows.scratch.TakeZeros<uint32_t>(query_parts_ * kWeightPart)) {
    RowSource query;
    query.dtype = item_.query_dtype;
    for (int64_t r = 0; r < item_.rows(); ++r) {
      query.data = QueryRow(item_, r);
      tile_rows_.Split(query, 0, item_.head_size, query_parts_, reinterpret_cast<uint16_t*>(queries_ + r * pairs_),
                       2 * query_part_);
    }
  }

  int64_t ChunkRows() const override { return Unit::kChunk; }

  void Pack(int64_t width, bool values) override {
    packed_ = width;
    key_parts_ = tile_rows_.PartsOf(&KeySlice::key, width);
    const PairRows::Rows keys = tile_rows_.Of(&KeySlice::key, width, item_.head_size, key_parts_);
    for (int p = 0; p < key_parts_; ++p) {
      // A pair of columns moves as one float would.
      TransposeRows(reinterpret_cast<const float*>(keys.data + p * keys.part_stride),
                    static_cast<size_t>(keys.stride / 2), static_cast<size_t>(width), static_cast<size_t>(used_pairs_),
                    reinterpret_cast<float*>(keys_ + p * key_part_), static_cast<size_t>(kLdt));
    }
    if (values) PackValues(width);
  }

  void Dots(int64_t row, int64_t count, int64_t width, RowFetch fetch) override {
    fetch.All();
    const PairMatrix queries = {queries_ + row * pairs_, pairs_, query_parts_, query_part_};
    const PairMatrix keys = {keys_, kLdt, key_parts_, key_part_};
    const auto careful = [&](size_t r, size_t rows, size_t column, size_t columns) HWY_ATTR {
      const int64_t first = static_cast<int64_t>(r), c = static_cast<int64_t>(column);
      AccumulateCarefully(queries.From(first * pairs_), static_cast<int64_t>(rows), keys.From(c),
                          static_cast<int64_t>(columns), pairs_, SmallProducts::kMade, nullptr,
                          rows_.scores + first * kTileKeys + c, kTileKeys);
    };
    const OnReject reject = RejectTo(careful);
    unit_.Accumulate(queries, count, keys, width, pairs_, SmallProducts::kMade, nullptr, HasParts() ? &reject : nullptr,
                     rows_.scores, kTileKeys);
    for (const KeySlice& s : tile_) {
      if (s.begin >= width) break;
      MultiplyScores(count, s.begin, std::min(s.count, width - s.begin), s.key.scale);
    }
  }

  void AddValues(int64_t row, int64_t count, int64_t width, const float* alpha, bool some_hidden) override {
    for (const KeySlice& s : tile_) {
      if (s.begin >= width) break;
      MultiplyScores(count, s.begin, std::min(s.count, width - s.begin), s.value.scale);
    }
    const int64_t pairs = Unit::RoundPairs((width + 1) / 2);
    RoundWeights(count, width, pairs);
    const auto careful = [&](size_t r, size_t rows, size_t column, size_t columns) HWY_ATTR {
      for (int64_t i = static_cast<int64_t>(r); i < static_cast<int64_t>(r + rows); ++i) {
        AddVisiblePairs(row, i, some_hidden ? rows_.row_bias[i] : kAllSeen, width, alpha + i,
                        static_cast<int64_t>(column), static_cast<int64_t>(columns));
      }
    };
    const OnReject reject = RejectTo(careful);
    const bool reads_hidden = some_hidden || std::min(2 * pairs, packed_) > width;
    unit_.Accumulate(Weights(), count, Values(values_), item_.v_head_size, pairs, SmallProducts::kLeftOut, alpha,
                     reads_hidden || HasParts() ? &reject : nullptr, rows_.output + row * rows_.ldo, rows_.ldo);
  }

 private:
  static constexpr int64_t kLdt = kTileKeys + static_cast<int64_t>(kLanes<float>);
  // A single row is multiplied as if it were a tile of rows.
  static constexpr int64_t kWeightPart = (Unit::kChunk + 16) * kTileKeys / 2;
  // A bias without -inf.
  static constexpr float kAllSeen[kTileKeys] = {};

  bool HasParts() const { return query_parts_ + tile_parts_ > 2; }
  PairMatrix Weights() const { return {weights_, kTileKeys / 2, query_parts_, kWeightPart}; }
  PairMatrix Values(const uint32_t* data) const { return {data, rows_.ldo, value_parts_, value_part_}; }

  // Values of tokens 2i and 2i + 1 side by side; a token beyond `width` is 0.
  void PackValues(int64_t width) {
    value_parts_ = tile_rows_.PartsOf(&KeySlice::value, width);
    const PairRows::Rows rows = tile_rows_.Of(&KeySlice::value, width, item_.v_head_size, value_parts_);
    const hn::ScalableTag<uint16_t> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    const int64_t columns = item_.v_head_size;
    for (int p = 0; p < value_parts_; ++p) {
      uint32_t* const part = values_ + p * value_part_;
      for (int64_t i = 0; 2 * i < width; ++i) {
        const uint16_t* const even = rows.data + p * rows.part_stride + 2 * i * rows.stride;
        const uint16_t* const odd = even + rows.stride;
        uint16_t* const to = reinterpret_cast<uint16_t*>(part + i * rows_.ldo);
        for (int64_t c = 0; c < columns; c += lanes) {
          const size_t count = static_cast<size_t>(std::min(lanes, columns - c));
          const auto a = hn::LoadN(d, even + c, count);
          const auto b = 2 * i + 1 < width ? hn::LoadN(d, odd + c, count) : hn::Zero(d);
          hn::StoreU(hn::InterleaveWholeLower(d, a, b), d, to + 2 * c);
          hn::StoreU(hn::InterleaveWholeUpper(d, a, b), d, to + 2 * c + lanes);
        }
      }
      const int64_t used = (width + 1) / 2;
      std::fill(part + used * rows_.ldo, part + Unit::RoundPairs(used) * rows_.ldo, 0u);
    }
  }

  // Weights of the chunk as pairs, with zeros up to `pairs` of them.
  void RoundWeights(int64_t count, int64_t width, int64_t pairs) {
    const Lanes<float> d;
    const hn::Repartition<hwy::bfloat16_t, Lanes<float>> dbf;
    const int64_t half = static_cast<int64_t>(kLanes<float>);
    const int64_t whole = RoundUpToLanes<float>(width);
    for (int64_t r = 0; r < count; ++r) {
      float* const from = rows_.scores + r * kTileKeys;
      if (whole < 2 * pairs) std::fill(from + whole, from + 2 * pairs, 0.0f);
      hwy::bfloat16_t* const to = reinterpret_cast<hwy::bfloat16_t*>(weights_ + r * kTileKeys / 2);
      for (int64_t k = 0; k < 2 * pairs; k += 2 * half) {
        const VecOf<float> a = hn::Load(d, from + k), b = hn::Load(d, from + k + half);
        const auto high = hn::OrderedDemote2To(dbf, a, b);
        hn::StoreU(high, dbf, to + k);
        if (query_parts_ == 1) continue;
        const VecOf<float> rest_a = hn::Sub(a, hn::PromoteLowerTo(d, high));
        const VecOf<float> rest_b = hn::Sub(b, hn::PromoteUpperTo(d, high));
        hn::StoreU(hn::OrderedDemote2To(dbf, rest_a, rest_b), dbf, to + 2 * kWeightPart + k);
      }
    }
  }

  // As Unit::Accumulate where a sum was not finite. The second part of infinity is 0, and what it is multiplied with
  // may be of the other sign: such sums are those of the first parts. Slow and rare.
  HWY_NOINLINE void AccumulateCarefully(const PairMatrix& a, int64_t rows, const PairMatrix& b, int64_t columns,
                                        int64_t pairs, SmallProducts small, const float* alpha, float* out,
                                        int64_t ldo) {
    constexpr int64_t kStride = 64;  // columns of a block at most
    if (a.parts == 1 && b.parts == 1) {
      return unit_.Accumulate(a, rows, b, columns, pairs, small, alpha, nullptr, out, ldo);
    }
    if (first_parts_ == nullptr) first_parts_ = rows_.scratch.TakeZeros<float>(Unit::RoundRows(Unit::kChunk) * kStride);
    float* const first = first_parts_;
    for (int64_t r = 0; r < rows; ++r) std::copy_n(out + r * ldo, columns, first + r * kStride);
    unit_.Accumulate(a, rows, b, columns, pairs, small, alpha, nullptr, out, ldo);
    unit_.Accumulate(a.FirstPart(), rows, b.FirstPart(), columns, pairs, small, alpha, nullptr, first, kStride);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        if (!std::isfinite(out[r * ldo + c])) out[r * ldo + c] = first[r * kStride + c];
      }
    }
  }

  // Row row + i of one block again, where a sum was not finite: with values of 0 for its hidden keys, whose weights of
  // 0 would make NaN of NaN. bias null: the row sees no key. Bit for bit what finite hidden values give.
  HWY_NOINLINE void AddVisiblePairs(int64_t row, int64_t i, const float* bias, int64_t width, const float* alpha,
                                    int64_t column, int64_t columns) {
    if (visible_ == nullptr) visible_ = rows_.scratch.TakeZeros<uint32_t>(tile_parts_ * value_part_);
    const int64_t pairs = Unit::RoundPairs((width + 1) / 2);
    const auto sees = [&](int64_t key) { return bias != nullptr && key < width && bias[key] != kMinusInfinity<float>; };
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const uint32_t mask = (sees(2 * pair) ? 0x0000FFFFu : 0u) | (sees(2 * pair + 1) ? 0xFFFF0000u : 0u);
      for (int p = 0; p < value_parts_; ++p) {
        const int64_t first = p * value_part_ + pair * rows_.ldo;
        for (int64_t c = first; c < first + rows_.ldo; ++c) visible_[c] = values_[c] & mask;
      }
    }
    AccumulateCarefully(Weights().From(i * kTileKeys / 2), 1, Values(visible_).From(column), columns, pairs,
                        SmallProducts::kLeftOut, alpha, rows_.output + (row + i) * rows_.ldo + column, rows_.ldo);
  }

  const int64_t used_pairs_, pairs_;                  // of columns of a key, and with what the unit wants
  const int query_parts_, tile_parts_;                // tile: at most
  const int64_t query_part_, key_part_, value_part_;  // sizes of one part
  int64_t packed_ = 0;                                // keys that are packed
  int key_parts_ = 1, value_parts_ = 1;               // of this tile
  PairRows tile_rows_;
  uint32_t* const queries_;       // parts x rows x pairs
  uint32_t* const keys_;          // parts x pairs x kLdt
  uint32_t* const values_;        // parts x tile / 2 x ldo
  uint32_t* const weights_;       // parts x chunk x tile / 2
  uint32_t* visible_ = nullptr;   // as values_, for one row
  float* first_parts_ = nullptr;  // a block of sums
  Unit unit_;
};

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
