// Which engine an item gets. Compiled once per target.
#if defined(ONNX_AI_RT_ENGINE_CHOICE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_ENGINE_CHOICE_INL_H_
#undef ONNX_AI_RT_ENGINE_CHOICE_INL_H_
#else
#define ONNX_AI_RT_ENGINE_CHOICE_INL_H_
#endif

#include <memory>

#include "kernels/amx_tiles.h"
#include "kernels/bfloat16_engine-inl.h"
#include "kernels/direct_engine-inl.h"
#include "kernels/emulated_tiles-inl.h"
#include "kernels/packed_engine-inl.h"
#include "kernels/tile_pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

template <class Unit>
std::unique_ptr<TileEngine<float>> MakeBFloat16Engine(RowBuffers<float>& rows, const KeyTile& tile) {
  if (!BFloat16Engine<Unit>::Serves(rows.item)) return nullptr;
  return std::make_unique<BFloat16Engine<Unit>>(rows, tile);
}

// Null where no unit multiplies the item's types. CPUs with tiles have vectors of bfloat16, too.
inline std::unique_ptr<TileEngine<float>> MakeBFloat16Engine(RowBuffers<float>& rows, const KeyTile& tile) {
#if HWY_ARCH_X86_64
  if (rows.item.tiles == TileUnit::kEmulated) return MakeBFloat16Engine<TilePairs<EmulatedTiles>>(rows, tile);
  if constexpr (kMultipliesBFloat16) {
    if (rows.item.tiles == TileUnit::kAmx) return MakeBFloat16Engine<TilePairs<AmxTiles>>(rows, tile);
  }
#endif
  if constexpr (kMultipliesBFloat16) return MakeBFloat16Engine<VectorPairs>(rows, tile);
  return nullptr;
}

template <typename C>
std::unique_ptr<TileEngine<C>> MakeEngine(RowBuffers<C>& rows, const KeyTile& tile) {
  if (rows.item.rows() <= kDirectRows) return std::make_unique<DirectEngine<C>>(rows, tile);
  if constexpr (sizeof(C) == 4) {
    if (auto engine = MakeBFloat16Engine(rows, tile)) return engine;
  }
  return std::make_unique<PackedEngine<C>>(rows, tile);
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
