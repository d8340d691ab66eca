// The tile instructions of AMX as the manual states them, for CPUs that lack them: to test what is built on them. Some
// thousand vector instructions for a product of tiles. Compiled once per target.
#if defined(ONNX_AI_RT_EMULATED_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_EMULATED_TILES_INL_H_
#undef ONNX_AI_RT_EMULATED_TILES_INL_H_
#else
#define ONNX_AI_RT_EMULATED_TILES_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Eight tiles of 16 rows of 64 bytes, in memory. The interface is that of AmxTiles.
class EmulatedTiles {
 public:
  template <int kTile>
  void Zero() {
    std::memset(tiles_[kTile], 0, sizeof(tiles_[kTile]));
  }
  template <int kTile>
  void Load(const void* from, size_t stride) {
    for (size_t r = 0; r < kRows; ++r) std::memcpy(tiles_[kTile][r], static_cast<const char*>(from) + r * stride, 64);
  }
  template <int kTile>
  void Store(void* to, size_t stride) {
    for (size_t r = 0; r < kRows; ++r) std::memcpy(static_cast<char*>(to) + r * stride, tiles_[kTile][r], 64);
  }
  template <int kC, int kA, int kB>
  void Multiply() {
    MultiplyAdd(tiles_[kA], tiles_[kB], tiles_[kC]);
  }

 private:
  static constexpr size_t kRows = 16, kColumns = 16;
  using Tile = uint32_t[kRows][kColumns];
  using Tag = hn::CappedTag<float, kColumns>;
  using Bits = hn::RebindToUnsigned<Tag>;
  using Vec = hn::Vec<Tag>;

  // Numbers below the smallest normal one become zeros of their sign; NaN stays NaN.
  static HWY_INLINE Vec Flush(Vec v) {
    const Tag d;
    const Vec zero = hn::And(v, hn::Set(d, -0.0f));
    return hn::IfThenElse(hn::Lt(hn::Abs(v), hn::Set(d, 0x1p-126f)), zero, v);
  }
  // The first and the second of each pair.
  static HWY_INLINE Vec Even(hn::Vec<Bits> pairs) { return Flush(hn::BitCast(Tag(), hn::ShiftLeft<16>(pairs))); }
  static HWY_INLINE Vec Odd(hn::Vec<Bits> pairs) {
    return Flush(hn::BitCast(Tag(), hn::And(pairs, hn::Set(Bits(), 0xFFFF0000u))));
  }

  // TDPBF16PS: the products of first elements of the pairs and those of second elements are summed apart, in ascending
  // order; what both make together is added to C. Round to nearest even, subnormal numbers are zero on the way in and
  // out. Where the target has no fused multiply-add, the product is exact all the same, but for overflow and underflow.
  static HWY_NOINLINE void MultiplyAdd(const Tile& a, const Tile& b, Tile& c) {
    const Tag d;
    const Bits du;
    for (size_t n = 0; n < kColumns; n += hn::MaxLanes(d)) {
      Vec b_even[kRows], b_odd[kRows];
      for (size_t k = 0; k < kRows; ++k) {
        b_even[k] = Even(hn::Load(du, b[k] + n));
        b_odd[k] = Odd(hn::Load(du, b[k] + n));
      }
      for (size_t m = 0; m < kRows; ++m) {
        Vec even = hn::Zero(d), odd = hn::Zero(d);
        for (size_t k = 0; k < kColumns; ++k) {
          const hn::Vec<Bits> pair = hn::Set(du, a[m][k]);
          even = Flush(hn::MulAdd(Even(pair), b_even[k], even));
          odd = Flush(hn::MulAdd(Odd(pair), b_odd[k], odd));
        }
        const Vec sum = Flush(hn::Add(even, odd));
        const Vec old = Flush(hn::BitCast(d, hn::Load(du, c[m] + n)));
        hn::Store(hn::BitCast(du, Flush(hn::Add(old, sum))), du, c[m] + n);
      }
    }
  }

  HWY_ALIGN Tile tiles_[8] = {};
};

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
