// The query rows of an item in whole numbers, for products with bytes of codes. Compiled once per target.
//
// A query row is q = step * (d0 + 256 d1 + 65536 d2) with digits from -128 to 127: what is lost of a value is at most
// 2^-24 of the row's largest, as much as float products lose in their sum where values are of a size. bfloat16
// does with two digits, 2^-16. Products and sums of digits and codes less their zero point are exact.
#if defined(ONNX_AI_RT_DIGIT_QUERIES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_DIGIT_QUERIES_INL_H_
#undef ONNX_AI_RT_DIGIT_QUERIES_INL_H_
#else
#define ONNX_AI_RT_DIGIT_QUERIES_INL_H_
#endif

#include "kernels/byte_products-inl.h"
#include "kernels/tile_engine-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// The query rows of an item as digits. Four neighbouring bytes of a stored row are a word; a word's codes meet words of
// four digits, kWordOfDigits bytes for each plane.
class DigitQueries {
 public:
  // Rows of whole words, and short enough for sums of 31 bits. Bytes are as quickly converted for one row.
  static bool Serves(const AttentionItem& item, size_t plane_count) {
    const int64_t codes = 4 * static_cast<int64_t>(plane_count);
    const bool gains = plane_count > 1 || item.rows() > 1;
    return gains && item.head_size % codes == 0 && item.head_size >= 32 && item.head_size <= 16384;
  }
  // Keys that are worth bringing to columns.
  static constexpr int64_t kLeastKeys = 8;

  // queries: in planes, `stride` apart, filled up with 0 to whole column groups.
  DigitQueries(Scratch& scratch, const AttentionItem& item, size_t plane_count, const float* queries, int64_t stride)
      : digit_count_(item.query_dtype == DType::kBFloat16 ? 2 : 3),
        plane_count_(plane_count),
        words_(static_cast<size_t>(item.head_size) / 4 / plane_count),
        row_bytes_(words_ * plane_count_ * kWordOfDigits),
        digits_(scratch.Take<uint8_t>(item.rows() * static_cast<int64_t>(row_bytes_))),
        words_of_keys_(scratch.Take<float>(static_cast<int64_t>(words_ * 2 * kLanes<float>))) {
    for (int64_t r = 0; r < item.rows(); ++r) {
      is_close_ &= PackRow(queries + r * stride, static_cast<size_t>(r));
    }
  }

  // False where floats know better what comes of it: a query is not finite or tiny, or far from its row's others; or a
  // factor of scores that leaves the normal range.
  bool ServesScale(float scale) const {
    return is_close_ && least_step_ * scale >= std::numeric_limits<float>::min() &&
           largest_step_ * scale <= std::numeric_limits<float>::max();
  }
  size_t digit_count() const { return digit_count_; }
  // Of a stored row.
  size_t words() const { return words_; }
  // By word, plane and digit.
  const uint8_t* Digits(size_t row) const { return digits_ + row * row_bytes_; }
  // The sum of a row's digits number `digit`.
  int32_t Sum(size_t row, size_t digit) const { return sums_[row][digit]; }
  float Step(size_t row) const { return steps_[row]; }
  // Room for the words of as many keys as two vectors have lanes.
  float* words_of_keys() const { return words_of_keys_; }

 private:
  // query: in planes, zeros behind the last column.
  bool PackRow(const float* query, size_t row) {
    const Lanes<float> d;
    constexpr size_t N = kLanes<float>;
    const size_t vectors = (words_ * 4 + N - 1) / N * plane_count_;
    VecOf<float> most_v = hn::Zero(d), poison = hn::Zero(d);
    for (size_t v = 0; v < vectors; ++v) {
      const VecOf<float> q = hn::Load(d, query + v * N);
      most_v = hn::Max(most_v, hn::Abs(q));
      poison = hn::Add(poison, hn::Sub(q, q));  // NaN where q is not finite
    }
    const float most = hn::ReduceMax(d, most_v);
    if (!hn::AllTrue(d, hn::Eq(poison, hn::Zero(d))) || most < 1e-30f) return false;
    // What is lost counts beside the values that most columns have, whatever the keys are beside the largest.
    const VecOf<float> small = hn::Set(d, most / (digit_count_ == 3 ? 64.0f : 32.0f));
    size_t large_columns = 0;
    for (size_t v = 0; v < vectors; ++v) {
      large_columns += hn::CountTrue(d, hn::Ge(hn::Abs(hn::Load(d, query + v * N)), small));
    }
    if (large_columns * 2 < words_ * 4 * plane_count_) return false;
    // A little below the largest number, whose digits are all 127: the product may be rounded up.
    const float largest = digit_count_ == 3 ? 8355000.0f : 32600.0f;
    steps_[row] = most / largest;
    least_step_ = std::min(least_step_, steps_[row]);
    largest_step_ = std::max(largest_step_, steps_[row]);
    const VecOf<float> to_steps = hn::Set(d, largest / most);
    // Bytes of a number that is moved up by half a byte's range in each place are its digits, moved up as much.
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Repartition<uint8_t, decltype(d)> du8;
    const hn::Repartition<int8_t, decltype(d)> ds8;
    const auto half = hn::Set(di, digit_count_ == 3 ? 0x808080 : 0x8080);
    const auto mask = hn::Set(di, digit_count_ == 3 ? 0xFFFFFF : 0xFFFF);
    auto sums = hn::Zero(di);
    for (size_t v = 0; v < vectors; ++v) {
      const auto number = NearestNumber(hn::Mul(hn::Load(d, query + v * N), to_steps));
      const auto digits = GatherDigits(hn::And(hn::Xor(hn::Add(number, half), half), mask));
      sums = AddByteProducts(hn::Set(du8, 1), hn::BitCast(ds8, digits), sums);
      PutWords(digits, row, v / plane_count_ * N / 4, v % plane_count_);
    }
    hn::StoreN(SumBlocks(sums), di, sums_[row], 4);
    return true;
  }

  // The digits of a plane's columns that are words from `word` on.
  template <class V8>
  HWY_INLINE void PutWords(V8 digits, size_t row, size_t word, size_t plane) {
    constexpr size_t N = kLanes<float>;
    const hn::DFromV<V8> d8;
    uint8_t* const to = digits_ + row * row_bytes_ + (word * plane_count_ + plane) * kWordOfDigits;
    if (plane_count_ == 1) {
      hn::StoreN(digits, d8, to, (words_ - word) * kWordOfDigits);
      return;
    }
    HWY_ALIGN uint8_t bytes[4 * N];
    hn::Store(digits, d8, bytes);
    for (size_t i = 0; i < N / 4 && word + i < words_; ++i) {
      std::memcpy(to + i * plane_count_ * kWordOfDigits, bytes + i * kWordOfDigits, kWordOfDigits);
    }
  }

  const size_t digit_count_, plane_count_, words_, row_bytes_;
  uint8_t* const digits_;  // rows x row_bytes
  float* const words_of_keys_;
  int32_t sums_[kDirectRows][4];
  float steps_[kDirectRows];
  float least_step_ = std::numeric_limits<float>::max(), largest_step_ = 0.0f;
  bool is_close_ = true;
};

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
