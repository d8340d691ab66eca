// Many query rows: K is transposed and V promoted once a tile, then both products run on registers full of
// accumulators. Bound by arithmetic.
#if defined(ONNX_AI_RT_PACKED_ENGINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_PACKED_ENGINE_INL_H_
#undef ONNX_AI_RT_PACKED_ENGINE_INL_H_
#else
#define ONNX_AI_RT_PACKED_ENGINE_INL_H_
#endif

#include "kernels/tile_engine-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

template <typename C>
class PackedEngine final : public TileEngine<C> {
 public:
  PackedEngine(RowBuffers<C>& rows, const KeyTile& tile)
      : TileEngine<C>(rows, tile),
        ldq_(RoundUpToLanes<C>(rows.item.head_size)),
        queries_(rows.scratch.template Take<C>(rows.item.rows() * ldq_)),
        keys_(rows.scratch.template Take<C>(rows.item.head_size * kLdt)),
        gathered_(
            rows.scratch.template Take<C>(kTileKeys * std::max(RoundUpToGroup<C>(rows.item.head_size), rows.ldo))) {
    PackQueries(item_, ldq_, queries_);
  }

  void Pack(int64_t width, bool values) override {
    const RowSource& first = tile_.begin()->key;
    const C* rows = gathered_;
    int64_t stride = RoundUpToGroup<C>(item_.head_size);
    if (AsStored(first)) {
      rows = reinterpret_cast<const C*>(first.data);
      stride = first.stride_bytes / static_cast<int64_t>(sizeof(C));
    } else {
      this->GatherRows(&KeySlice::key, width, item_.head_size, stride, gathered_);
    }
    TransposeRows(rows, static_cast<size_t>(stride), static_cast<size_t>(width), static_cast<size_t>(item_.head_size),
                  keys_, static_cast<size_t>(kLdt));
    values_gathered_ = !AsStored(tile_.begin()->value);
    if (values && values_gathered_) {
      this->GatherRows(&KeySlice::value, width, item_.v_head_size, rows_.ldo, gathered_);
    }
  }

  void Dots(int64_t row, int64_t count, int64_t width, RowFetch fetch) override {
    const Reader<C> keys(keys_, kLdt * static_cast<int64_t>(sizeof(C)));
    const auto multiply = [&](auto with) {
      AccumulateRows<C>(queries_ + row * ldq_, static_cast<size_t>(ldq_), static_cast<size_t>(count), keys,
                        static_cast<size_t>(RoundUpToLanes<C>(width)), static_cast<size_t>(item_.head_size), nullptr,
                        nullptr, rows_.scores, static_cast<size_t>(kTileKeys), with);
    };
    if (fetch.empty()) {
      multiply(NoFetch());
    } else {
      multiply(fetch);
    }
  }

  void AddValues(int64_t row, int64_t count, int64_t width, const C* alpha, bool some_hidden) override {
    const Reader<C> values = values_gathered_ ? Reader<C>(gathered_, rows_.ldo * static_cast<int64_t>(sizeof(C)))
                                              : Reader<C>(tile_.begin()->value, 0);
    this->AddRows(values, row, count, 0, width, alpha, some_hidden);
  }

 private:
  using TileEngine<C>::item_;
  using TileEngine<C>::rows_;
  using TileEngine<C>::tile_;
  // TransposeRows may write a vector beyond the tile.
  static constexpr int64_t kLdt = kTileKeys + static_cast<int64_t>(kLanes<C>);
  static constexpr DType kComputeDType = sizeof(C) == 8 ? DType::kDouble : DType::kFloat;

  // One slice of the compute type needs no gathering.
  bool AsStored(const RowSource& first) const {
    return tile_.size() == 1 && first.dtype == kComputeDType && first.payload == nullptr;
  }

  const int64_t ldq_;
  C* const queries_;   // rows x ldq
  C* const keys_;      // head_size x kLdt: the tile's keys as columns
  C* const gathered_;  // rows of the tile in the compute type: keys, then values
  bool values_gathered_ = false;
};

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
