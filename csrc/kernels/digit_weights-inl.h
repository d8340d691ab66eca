// The softmax weights of a tile in whole numbers, for products with bytes of codes. Compiled once per target.
//
// A row's weights in a tile are w = step * (d0 + 256 d1 + 65536 d2) with digits from 0 to 255: what is lost of a weight
// is at most 2^-24 of the row's largest in the tile, as much as float loses of that one. Products and sums of digits
// and codes less their zero point are exact.
#if defined(ONNX_AI_RT_DIGIT_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_DIGIT_WEIGHTS_INL_H_
#undef ONNX_AI_RT_DIGIT_WEIGHTS_INL_H_
#else
#define ONNX_AI_RT_DIGIT_WEIGHTS_INL_H_
#endif

#include "kernels/byte_products-inl.h"
#include "kernels/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// The weights of up to kDirectRows rows in a tile as digits.
class DigitWeights {
 public:
  // Keys that are worth bringing together by fours.
  static constexpr int64_t kLeastKeys = 8;

  // reach[r]: the logarithm of the row's largest weight, 0 or less; room for whole vectors. Then come the weights.
  void Begin(const float* HWY_RESTRICT reach, size_t rows) {
    const Lanes<float> d;
    const hn::RebindToSigned<decltype(d)> di;
    is_close_ = true;
    for (size_t r = 0; r < rows; r += kLanes<float>) {
      const VecOf<float> log = hn::Load(d, reach + r), most = hn::Max(log, hn::Set(d, kLeastReach));
      const auto is_row = hn::FirstN(d, rows - r);
      // A row that sees no key has no weights, whatever its digits are.
      const auto sees_none = hn::Eq(log, hn::Set(d, kMinusInfinity<float>));
      is_close_ &= hn::AllTrue(d, hn::Or(hn::Or(hn::Eq(log, most), sees_none), hn::Not(is_row)));
      // The largest weight is at most 2^exponent, but for the error of exp and of this product: numbers stay a little
      // below the largest.
      const auto exponent = hn::NearestInt(hn::Ceil(hn::Mul(most, hn::Set(d, 1.44269504f))));
      const auto bias = hn::Set(di, 127);
      const VecOf<float> up = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(bias, exponent)));
      const VecOf<float> down = hn::BitCast(d, hn::ShiftLeft<23>(hn::Sub(bias, exponent)));
      hn::Store(hn::IfThenZeroElse(sees_none, hn::Mul(up, hn::Set(d, 1.0f / kLargest))), d, steps_ + r);
      hn::Store(hn::Mul(down, hn::Set(d, kLargest)), d, to_steps_ + r);
    }
  }
  // Takes the weights of a row, a vector of them from key `key` on.
  struct Row {
    HWY_INLINE void Put(size_t key, VecOf<float> weights) {
      const Lanes<float> d;
      const hn::Repartition<uint8_t, decltype(d)> d8;
      const VecOf<float> numbers = hn::Mul(weights, hn::Set(d, to_steps));
      large += hn::CountTrue(d, hn::Ge(numbers, hn::Set(d, kLargest / 64)));
      hn::Store(GatherDigits(NearestNumber(numbers)), d8, digits + key * 4);
    }
    uint8_t* HWY_RESTRICT digits;
    float to_steps;
    size_t large;  // weights of the largest one's size
  };
  Row RowOf(size_t row) { return {digits_ + row * kTileKeys * 4, to_steps_[row], 0}; }
  // After the last vector. Where a few weights stand out, as those of the first tokens often do, their values may be
  // next to 0: then what is lost of the others shows.
  void End(const Row& row) { is_close_ &= row.large >= kLeastLarge; }

  // False where floats know better what comes of it: weights of a row are tiny beside those of other tiles, or few
  // stand out, or a factor leaves the normal range.
  bool ServesScale(float scale) const { return is_close_ && scale >= 1e-5f && scale <= 1e25f; }
  // Of four neighbouring keys for each word.
  const uint8_t* Digits(size_t row, size_t key) const { return digits_ + (row * kTileKeys + key) * 4; }
  float Step(size_t row) const { return steps_[row]; }

 private:
  static constexpr float kLargest = 16776000.0f;
  static constexpr float kLeastReach = -60.0f;
  static constexpr size_t kLeastLarge = 8;

  HWY_ALIGN uint8_t digits_[kDirectRows * kTileKeys * 4];
  HWY_ALIGN float steps_[kDirectRows], to_steps_[kDirectRows];
  bool is_close_ = false;
};

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
