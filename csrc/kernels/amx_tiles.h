// The tile instructions of the CPU. As assembly rather than intrinsics: a function that uses these has to be compiled
// for AMX in whole, and could not share vector code with functions that are not; the assembler takes them anywhere.
#pragma once

#ifdef __x86_64__
#include <cstddef>
#include <cstdint>

namespace onnx_ai_rt {

// What LDTILECFG loads: palette 1, eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The tiles of this thread, from construction to destruction. The interface is that of EmulatedTiles.
class AmxTiles {
 public:
  AmxTiles() {
    static constexpr TileConfig kConfig;
    asm volatile("ldtilecfg %0" : : "m"(kConfig));
  }
  ~AmxTiles() { asm volatile("tilerelease"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  template <int kTile>
  void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // Rows of 64 bytes, `stride` bytes apart.
  template <int kTile>
  void Load(const void* from, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  void Store(void* to, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // kC += kA . kB. The operands stand in the assembler's order: the last is the destination.
  template <int kC, int kA, int kB>
  void Multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace onnx_ai_rt
#endif  // __x86_64__
