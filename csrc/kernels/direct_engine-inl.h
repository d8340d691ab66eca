// Few query rows: each stored K and V row is read once, promoted in registers. Bound by memory.
#if defined(ONNX_AI_RT_DIRECT_ENGINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_DIRECT_ENGINE_INL_H_
#undef ONNX_AI_RT_DIRECT_ENGINE_INL_H_
#else
#define ONNX_AI_RT_DIRECT_ENGINE_INL_H_
#endif

#include <array>

#include "kernels/digit_dots-inl.h"
#include "kernels/digit_values-inl.h"
#include "kernels/row_dots-inl.h"
#include "kernels/tile_engine-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

template <typename C>
class DirectEngine final : public TileEngine<C> {
 public:
  DirectEngine(RowBuffers<C>& rows, const KeyTile& tile)
      : TileEngine<C>(rows, tile),
        ldq_(RoundUpToGroup<C>(rows.item.head_size)),
        queries_(rows.scratch.template Take<C>(rows.item.rows() * ldq_)) {
    PackQueries(item_, ldq_, queries_);
  }

  void Pack(int64_t, bool) override {}

  void Dots(int64_t row, int64_t count, int64_t width, RowFetch fetch) override {
    fetch.All();
    for (const KeySlice& s : tile_) {
      if (s.begin >= width) break;
      const int64_t keys = std::min(s.count, width - s.begin);
      WithRows<C>(s.key, [&](auto element) HWY_ATTR {
        using T = decltype(element);
        const RowFetch values = Fetch(s.value.data, keys, item_.v_head_size, s.value);
        if constexpr (IsCode<T>() && kMultipliesBytes) {
          if (DotInWholeNumbers<kPlanes<T>>(row, count, s, keys, values)) return;
        }
        const C* const queries = Queries<kPlanes<T>>() + row * ldq_;
        DotRows(queries, static_cast<size_t>(ldq_), static_cast<size_t>(count), Reader<T>(s.key, 0),
                static_cast<size_t>(keys), static_cast<size_t>(item_.head_size), static_cast<C>(s.key.scale),
                rows_.scores + s.begin, static_cast<size_t>(kTileKeys), values);
      });
    }
  }

  C ValueScale() const override { return tile_.size() == 1 ? static_cast<C>(tile_.begin()->value.scale) : C{1}; }

  DigitWeights* WeightDigits() override {
    if constexpr (!kMultipliesBytes || sizeof(C) != sizeof(float)) return nullptr;
    if (std::none_of(tile_.begin(), tile_.end(), [&](const KeySlice& s) { return WantsDigits(s); })) return nullptr;
    if (digit_weights_ == nullptr) digit_weights_ = rows_.scratch.template New<DigitWeights>();
    return digit_weights_;
  }

  void AddValues(int64_t row, int64_t count, int64_t width, const C* alpha, bool some_hidden) override {
    static constexpr auto kOnes = [] {
      std::array<C, kChunkRows> ones{};
      for (C& one : ones) one = C{1};
      return ones;
    }();
    for (const KeySlice& s : tile_) {
      if (s.begin >= width) break;
      const int64_t keys = std::min(s.count, width - s.begin);
      const C* const old_by = s.begin == 0 ? alpha : kOnes.data();
      WithRows<C>(s.value, [&](auto element) HWY_ATTR {
        using T = decltype(element);
        const RowFetch next = Fetch(s.next_keys, keys, item_.head_size, s.key);
        if constexpr (IsCode<T>() && kMultipliesBytes) {
          const bool is_last = s.begin + keys == width;
          if (AddInWholeNumbers<kPlanes<T>>(row, count, s, keys, is_last, old_by, next)) return;
        }
        if (tile_.size() > 1) this->MultiplyScores(count, s.begin, keys, s.value.scale);
        this->AddRows(Reader<T>(s.value, 0), row, count, s.begin, keys, old_by, some_hidden, next);
      });
    }
  }

 private:
  // Memory answers late and rows of K and V are two streams: while those of one are at work, as many of the other are
  // asked for, V of this tile and K of the next. first null: none.
  static RowFetch Fetch(const uint8_t* first, int64_t count, int64_t width, const RowSource& like) {
    return RowFetch(first, count, StoredBytes(like.dtype, width), like.stride_bytes);
  }

  // Scores of a slice of codes. False where floats are to be used.
  template <size_t kPlaneCount>
  bool DotInWholeNumbers(int64_t row, int64_t count, const KeySlice& s, int64_t keys, const RowFetch& fetch) {
    if (keys < DigitQueries::kLeastKeys || !DigitQueries::Serves(item_, kPlaneCount)) return false;
    auto& digits = digit_queries_[kPlaneCount / 2];
    if (digits == nullptr) {
      digits =
          rows_.scratch.template New<DigitQueries>(rows_.scratch, item_, kPlaneCount, Queries<kPlaneCount>(), ldq_);
    }
    if (!digits->ServesScale(s.key.scale)) return false;
    const auto dot = [&](auto digit_count) {
      constexpr int kBits = 8 / static_cast<int>(kPlaneCount);
      DotDigits<decltype(digit_count)::value, kBits>(*digits, static_cast<size_t>(row), static_cast<size_t>(count),
                                                     s.key, static_cast<size_t>(keys), rows_.scores + s.begin,
                                                     static_cast<size_t>(kTileKeys), fetch);
    };
    if (digits->digit_count() == 3) {
      dot(std::integral_constant<size_t, 3>());
    } else {
      dot(std::integral_constant<size_t, 2>());
    }
    return true;
  }

  // Values of a slice of codes. False where floats are to be used.
  template <size_t kPlaneCount>
  bool AddInWholeNumbers(int64_t row, int64_t count, const KeySlice& s, int64_t keys, bool is_last, const C* alpha,
                         const RowFetch& fetch) {
    // Words of weights have four keys; behind the last one they are 0.
    if (!WantsDigits(s) || !digit_weights_->ServesScale(s.value.scale) || (keys % 4 != 0 && !is_last)) return false;
    constexpr int kBits = 8 / static_cast<int>(kPlaneCount);
    const CodeRows values = RowsOfCodes<kBits>(s.value, static_cast<size_t>(s.begin), static_cast<size_t>(keys),
                                               static_cast<size_t>(item_.v_head_size));
    AddDigits<kBits>(*digit_weights_, static_cast<size_t>(count), values, alpha, rows_.output + row * rows_.ldo,
                     static_cast<size_t>(rows_.ldo), fetch);
    return true;
  }

  // Whether the values of a slice may be taken in whole numbers: codes that are whole vectors, and enough of them.
  bool WantsDigits(const KeySlice& s) const {
    const int bits = BitsOf(s.value.dtype);
    return item_.v_head_size > 0 && bits <= 8 && (bits > 2 || item_.rows() == 1) && s.begin % 4 == 0 &&
           s.count >= DigitWeights::kLeastKeys &&
           item_.v_head_size * bits % (8 * static_cast<int64_t>(kValueBytes)) == 0;
  }

  using TileEngine<C>::item_;
  using TileEngine<C>::rows_;
  using TileEngine<C>::tile_;

  // The queries; for codes of less than 8 bits with their columns in planes, made when the first such run comes.
  template <size_t kPlaneCount>
  const C* Queries() {
    if constexpr (kPlaneCount == 1) return queries_;
    auto& copy = plane_queries_[kPlaneCount == 4];
    if (copy == nullptr) {
      const Lanes<C> d;
      const int64_t size = item_.rows() * ldq_;
      copy = rows_.scratch.template Take<C>(size);
      for (int64_t i = 0; i < size; i += static_cast<int64_t>(kPlaneCount * kLanes<C>)) {
        VecOf<C> v[kPlaneCount];
        for (size_t p = 0; p < kPlaneCount; ++p) v[p] = hn::Load(d, queries_ + i + p * kLanes<C>);
        ToPlanes<C>(v);
        for (size_t p = 0; p < kPlaneCount; ++p) hn::Store(v[p], d, copy + i + p * kLanes<C>);
      }
    }
    return copy;
  }

  const int64_t ldq_;
  C* const queries_;                     // rows x ldq
  C* plane_queries_[2] = {};             // of 2 and 4 planes
  DigitQueries* digit_queries_[3] = {};  // of 1, 2 and 4 planes
  DigitWeights* digit_weights_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
