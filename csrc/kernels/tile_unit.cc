#include "kernels/tile_unit.h"

#include "kernels/amx_tiles.h"
#include "kernels/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tile_unit.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/emulated_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

template <class Tiles>
void MultiplyOn(const uint32_t* a, const uint32_t* b, float* c) {
  constexpr size_t kStride = 64;
  Tiles tiles;
  tiles.template Load<0>(c, kStride);
  tiles.template Load<1>(a, kStride);
  tiles.template Load<2>(b, kStride);
  tiles.template Multiply<0, 1, 2>();
  tiles.template Store<0>(c, kStride);
}

void MultiplyEmulated(const uint32_t* a, const uint32_t* b, float* c) { MultiplyOn<EmulatedTiles>(a, b, c); }

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#endif

namespace onnx_ai_rt {
HWY_EXPORT(MultiplyEmulated);
namespace {

#if defined(__x86_64__) && defined(__linux__)

bool CpuHasTiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  return (d & kAmxBf16) != 0 && (d & kAmxTile) != 0;
}

// XCR0 says which registers the system saves: 17 and 18 are the tiles' configuration and their contents.
bool SystemSavesTiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kOsXsave = 1u << 27;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsave) == 0) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kTiles = 3u << 17;
  return (low & kTiles) == kTiles;
}

// Since 5.16 Linux wants to be asked, once for all threads of the process.
bool SystemPermitsTiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Small integers: every order of summing gives the same bits, so that what differs is a wrong element or a wrong CPU.
bool CpuMultipliesRight() {
  alignas(64) uint32_t a[256], b[256];
  alignas(64) float expected[256], got[256];
  uint32_t state = 1;
  const auto number = [&state]() -> uint32_t {
    state = state * 1664525 + 1013904223;
    const float f = static_cast<float>(static_cast<int>(state >> 25) - 64);
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof(bits));
    return bits >> 16;
  };
  for (int i = 0; i < 256; ++i) {
    a[i] = number() | number() << 16;
    b[i] = number() | number() << 16;
    expected[i] = got[i] = static_cast<float>(i);
  }
  MultiplyTile(TileUnit::kEmulated, a, b, expected);
  HWY_STATIC_DISPATCH(MultiplyOn)<AmxTiles>(a, b, got);
  return std::equal(std::begin(expected), std::end(expected), got);
}

std::string FindReason() {
  if (!CpuHasTiles()) return "the CPU has no amx_tile and amx_bf16";
  if (!SystemSavesTiles()) return "the system does not save tile registers";
  if (!SystemPermitsTiles()) return "the system does not permit tile registers";
  if (!CpuMultipliesRight()) return "the CPU's tile products are not what they should be";
  return "";
}

#else

std::string FindReason() { return "it is supported on x86-64 and Linux alone"; }

#endif

}  // namespace

const std::string& WhyNoAmx() {
  static const std::string reason = FindReason();
  return reason;
}

void MultiplyTile(TileUnit unit, const uint32_t* a, const uint32_t* b, float* c) {
  switch (unit) {
    case TileUnit::kEmulated: return HWY_DYNAMIC_DISPATCH(MultiplyEmulated)(a, b, c);
#ifdef __x86_64__
    case TileUnit::kAmx:
      if (WhyNoAmx().empty()) return HWY_STATIC_DISPATCH(MultiplyOn)<AmxTiles>(a, b, c);
      break;
#endif
    default: break;
  }
  Fail("tiles: expected a unit that is here, got one of which ", WhyNoAmx());
}

}  // namespace onnx_ai_rt
#endif  // HWY_ONCE
