// Rows of the query and of a tile as bfloat16, of which two neighbours are a pair. Compiled once per target.
//
// A value is the exact sum of one or two numbers of bfloat16 (BFloat16Parts). Part p of a row lies p * part_stride
// behind it.
#if defined(ONNX_AI_RT_PAIR_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_PAIR_ROWS_INL_H_
#undef ONNX_AI_RT_PAIR_ROWS_INL_H_
#else
#define ONNX_AI_RT_PAIR_ROWS_INL_H_
#endif

#include "kernels/bfloat16_parts.h"
#include "kernels/tile_engine-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

class PairRows {
 public:
  struct Rows {
    const uint16_t* data;
    int64_t stride, part_stride;
  };

  // For rows of at most `columns`, a multiple of the lanes.
  PairRows(Scratch& scratch, const KeyTile& tile, int64_t columns, int parts)
      : tile_(tile),
        stride_(columns),
        gathered_(scratch.Take<uint16_t>(parts * kTileKeys * columns)),
        floats_(scratch.Take<float>(RoundUpToGroup<float>(columns))) {}

  // Parts of one side of the tile's first `width` keys.
  int PartsOf(RowSource KeySlice::* side, int64_t width) const {
    int parts = 1;
    for (const KeySlice& s : tile_) {
      if (s.begin < width) parts = std::max(parts, BFloat16Parts(s.*side));
    }
    return parts;
  }

  // One side of the tile's first `width` keys: as stored, or gathered, with an odd row filled up with 0.
  Rows Of(RowSource KeySlice::* side, int64_t width, int64_t columns, int parts) {
    const RowSource& first = tile_.begin()->*side;
    if (tile_.size() == 1 && first.dtype == DType::kBFloat16 && columns % 2 == 0 && first.stride_bytes % 4 == 0) {
      return {reinterpret_cast<const uint16_t*>(first.data), first.stride_bytes / 2, 0};
    }
    const int64_t part_stride = kTileKeys * stride_;
    for (const KeySlice& s : tile_) {
      if (s.begin >= width) break;
      for (int64_t r = 0; r < s.count; ++r) {
        uint16_t* const to = gathered_ + (s.begin + r) * stride_;
        Split((s.*side), r, columns, parts, to, part_stride);
        for (int p = 0; columns % 2 != 0 && p < parts; ++p) to[p * part_stride + columns] = 0;
      }
    }
    return {gathered_, stride_, part_stride};
  }

  // Row r of `source`. Writes whole vectors, unless it is bfloat16 and has one part.
  void Split(const RowSource& source, int64_t r, int64_t columns, int parts, uint16_t* to, int64_t part_stride) {
    if (source.dtype == DType::kBFloat16) {
      std::memcpy(to, source.Row(r), static_cast<size_t>(columns) * 2);
      if (parts == 2) std::fill_n(to + part_stride, columns, uint16_t{0});
      return;
    }
    const Lanes<float> d;
    const hn::Rebind<uint16_t, Lanes<float>> du16;
    // Codes less their zero point have at most 9 bits with sign.
    WithType<float>(source.dtype, [&](auto element) HWY_ATTR {
      using T = decltype(element);
      if constexpr (IsCode<T>() || hwy::IsSame<T, hwy::float16_t>()) {
        ConvertRow(Reader<T>(source, 0), static_cast<size_t>(r), static_cast<size_t>(columns), 1.0f, floats_);
      }
    });
    for (int64_t c = 0; c < columns; c += static_cast<int64_t>(kLanes<float>)) {
      const VecOf<float> value = hn::Load(d, floats_ + c);
      const auto high = BFloat16Bits(d, value);
      hn::StoreU(high, du16, to + c);
      if (parts == 1) continue;
      const hn::RebindToUnsigned<Lanes<float>> du;
      const VecOf<float> rest = hn::Sub(value, hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, high))));
      const VecOf<float> low = hn::IfThenElseZero(hn::IsFinite(value), rest);
      hn::StoreU(BFloat16Bits(d, low), du16, to + part_stride + c);
    }
  }

 private:
  const KeyTile& tile_;
  const int64_t stride_;
  uint16_t* const gathered_;  // parts x tile x stride
  float* const floats_;       // one row
};

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
