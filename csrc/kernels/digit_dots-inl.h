// Few query rows against rows of codes, in whole numbers: where the CPU adds four products of bytes in one instruction
// (AVX-512 VNNI), codes need not become floats. Compiled once per target.
//
// A query row is q = step * (d0 + 256 d1 + 65536 d2) with digits from -128 to 127: what is lost of a value is at most
// 2^-24 of the row's largest, as much as float products lose in their sum where values are of a size. Queries of 16
// bits do with two digits, 2^-16. Products and sums of digits and codes less their zero point are exact.
#if defined(ONNX_AI_RT_DIGIT_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_DIGIT_DOTS_INL_H_
#undef ONNX_AI_RT_DIGIT_DOTS_INL_H_
#else
#define ONNX_AI_RT_DIGIT_DOTS_INL_H_
#endif

#include "kernels/tile_engine-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

inline constexpr bool kMultipliesBytes = HWY_TARGET <= HWY_AVX3_DL && HWY_ARCH_X86;

// The query rows of an item as digits. Four neighbouring bytes of a stored row are a word; a word's codes meet words of
// four digits, one for each plane and digit.
class DigitQueries {
 public:
  // Rows of whole words; long enough to pay for it, and short enough for sums of 31 bits. Bytes are as quickly
  // converted for up to 4 rows of float queries.
  static bool Serves(const AttentionItem& item, size_t plane_count) {
    const int64_t codes = 4 * static_cast<int64_t>(plane_count);
    const bool gains = plane_count > 1 || item.rows() > (item.query_dtype == DType::kFloat ? 4 : 1);
    return gains && item.head_size % codes == 0 && item.head_size >= 32 && item.head_size <= 16384;
  }
  // Keys that are worth bringing to columns.
  static constexpr int64_t kLeastKeys = 8;

  // queries: in planes, `stride` apart, filled up with 0 to whole column groups.
  DigitQueries(const AttentionItem& item, size_t plane_count, const float* queries, int64_t stride)
      : digit_count_(item.query_dtype == DType::kFloat ? 3 : 2),
        plane_count_(plane_count),
        words_(static_cast<size_t>(item.head_size) / 4 / plane_count),
        row_bytes_(words_ * plane_count_ * digit_count_ * 4),
        digits_(Allocate<int8_t>(item.rows() * static_cast<int64_t>(row_bytes_))),
        sums_(Allocate<int32_t>(item.rows() * static_cast<int64_t>(digit_count_))),
        steps_(Allocate<float>(item.rows())),
        words_of_keys_(Allocate<float>(static_cast<int64_t>(words_ * 2 * kLanes<float>))) {
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
  const int8_t* Digits(size_t row) const { return digits_.get() + row * row_bytes_; }
  // The sum of a row's digits number `digit`.
  int32_t Sum(size_t row, size_t digit) const { return sums_[row * digit_count_ + digit]; }
  float Step(size_t row) const { return steps_[row]; }
  // Room for the words of as many keys as two vectors have lanes.
  float* words_of_keys() const { return words_of_keys_.get(); }

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
    if (large_columns * 8 < words_ * 4 * plane_count_) return false;
    // A little below the largest number, whose digits are all 127: the product may be rounded up.
    const float largest = digit_count_ == 3 ? 8355000.0f : 32600.0f;
    steps_[row] = most / largest;
    least_step_ = std::min(least_step_, steps_[row]);
    largest_step_ = std::max(largest_step_, steps_[row]);
    const VecOf<float> to_steps = hn::Set(d, largest / most);
    const hn::RebindToSigned<decltype(d)> di;
    auto zero = hn::Zero(di);
    decltype(zero) sums[3] = {zero, zero, zero};
    for (size_t v = 0; v < vectors; ++v) {
      auto rest = hn::NearestInt(hn::Mul(hn::Load(d, query + v * N), to_steps));
      HWY_UNROLL(3)
      for (size_t p = 0; p < 3; ++p) {
        if (p == digit_count_) break;
        const auto digit = hn::ShiftRight<24>(hn::ShiftLeft<24>(rest));
        rest = hn::ShiftRight<8>(hn::Sub(rest, digit));
        sums[p] = hn::Add(sums[p], digit);
        PutDigits(digit, row, v / plane_count_ * N / 4, v % plane_count_, p);
      }
    }
    for (size_t p = 0; p < digit_count_; ++p) sums_[row * digit_count_ + p] = hn::ReduceSum(di, sums[p]);
    return true;
  }

  // Digit number `digit` of a vector of columns of a plane, which are words from `word` on.
  template <class V32>
  HWY_INLINE void PutDigits(V32 v, size_t row, size_t word, size_t plane, size_t digit) {
    const hn::DFromV<V32> di;
    const hn::Rebind<int8_t, decltype(di)> d8;
    constexpr size_t N = kLanes<float>;
    HWY_ALIGN int8_t bytes[N];
    hn::Store(hn::DemoteTo(d8, v), d8, bytes);
    int8_t* const to = digits_.get() + row * row_bytes_;
    for (size_t i = 0; i < N && word < words_; i += 4, ++word) {
      std::memcpy(to + ((word * plane_count_ + plane) * digit_count_ + digit) * 4, bytes + i, 4);
    }
  }

  const size_t digit_count_, plane_count_, words_, row_bytes_;
  hwy::AlignedFreeUniquePtr<int8_t[]> digits_;  // rows x row_bytes
  hwy::AlignedFreeUniquePtr<int32_t[]> sums_;   // rows x digits
  hwy::AlignedFreeUniquePtr<float[]> steps_;    // rows
  hwy::AlignedFreeUniquePtr<float[]> words_of_keys_;
  float least_step_ = std::numeric_limits<float>::max(), largest_step_ = 0.0f;
  bool is_close_ = true;
};

// sum + the dot products of each lane's four bytes.
template <class V32, class VU8>
HWY_INLINE V32 AddByteProducts(VU8 codes, V32 digits, V32 sum) {
#if HWY_TARGET <= HWY_AVX3_DL && HWY_ARCH_X86
  // What the intrinsic does, in place: compilers copy sums around it.
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(codes.raw), "v"(digits.raw));
  return sum;
#else
  const hn::DFromV<V32> d;
  return hn::SumOfMulQuadAccumulate(d, codes, hn::BitCast(hn::Repartition<int8_t, decltype(d)>(), digits), sum);
#endif
}

// R query rows from `row` on against a key in each lane of V vectors, whose words are columns: s[r] = q[r] . k * scale
// of the first `count` keys.
template <size_t R, size_t V, size_t kDigits, int kBits>
HWY_INLINE void DotWords(const DigitQueries& queries, size_t row, const RowSource& keys, size_t count,
                         float* HWY_RESTRICT s, size_t lds, RowFetch& shared_fetch) {
  const hn::ScalableTag<int32_t> di;
  const hn::ScalableTag<uint8_t> du8;
  const hn::ScalableTag<uint16_t> du16;
  const Lanes<float> d;
  constexpr size_t N = kLanes<float>;
  constexpr size_t P = kPlanes<Code<kBits>>;
  constexpr uint32_t kHalf = 1u << (kBits - 1);
  constexpr uint32_t kRepeated = kBits == 8 ? 1 : kBits == 4 ? 0x11 : 0x55;  // in each code of a byte
  const bool is_signed = IsSignedCode(keys.dtype);
  // Signed codes have their sign bit flipped, which adds half the range and makes them unsigned.
  const auto flip = hn::Set(du8, static_cast<uint8_t>(is_signed ? kHalf * kRepeated : 0));
  const auto mask = hn::Set(du8, static_cast<uint8_t>((1u << kBits) - 1));
  const int32_t zero = keys.zero_point + (is_signed ? static_cast<int32_t>(kHalf) : 0);
  hn::Vec<decltype(di)> acc[R][kDigits][V];
  HWY_UNROLL(4)
  for (size_t r = 0; r < R; ++r) {
    HWY_UNROLL(4)
    for (size_t p = 0; p < kDigits; ++p) {
      HWY_UNROLL(4)
      for (size_t v = 0; v < V; ++v) acc[r][p][v] = hn::Set(di, -zero * queries.Sum(row + r, p));
    }
  }
  const int8_t* digits[R];
  HWY_UNROLL(4)
  for (size_t r = 0; r < R; ++r) digits[r] = queries.Digits(row + r);
  const float* const words = queries.words_of_keys();
  RowFetch fetch = shared_fetch;
  size_t at = 0;
  for (size_t w = 0; w < queries.words(); ++w) {
    fetch.Step();
    hn::Vec<decltype(du8)> raw[V];
    HWY_UNROLL(4)
    for (size_t v = 0; v < V; ++v) raw[v] = hn::Xor(hn::BitCast(du8, hn::Load(d, words + (w * V + v) * N)), flip);
    HWY_UNROLL(4)
    for (size_t plane = 0; plane < P; ++plane) {
      hn::Vec<decltype(du8)> codes[V];
      HWY_UNROLL(4)
      for (size_t v = 0; v < V; ++v) {
        const auto shifted = hn::ShiftRightSame(hn::BitCast(du16, raw[v]), static_cast<int>(plane) * kBits);
        codes[v] = P == 1 ? raw[v] : hn::And(hn::BitCast(du8, shifted), mask);
      }
      HWY_UNROLL(4)
      for (size_t p = 0; p < kDigits; ++p) {
        HWY_UNROLL(4)
        for (size_t r = 0; r < R; ++r) {
          int32_t word;
          std::memcpy(&word, digits[r] + at, sizeof(word));
          const auto four = hn::Set(di, word);
          HWY_UNROLL(4)
          for (size_t v = 0; v < V; ++v) acc[r][p][v] = AddByteProducts(codes[v], four, acc[r][p][v]);
        }
        at += sizeof(int32_t);
      }
    }
  }
  shared_fetch = fetch;
  HWY_UNROLL(4)
  for (size_t r = 0; r < R; ++r) {
    const VecOf<float> factor = hn::Set(d, queries.Step(row + r) * keys.scale);
    HWY_UNROLL(4)
    for (size_t v = 0; v < V; ++v) {
      VecOf<float> sum = hn::ConvertTo(d, acc[r][0][v]);
      HWY_UNROLL(4)
      for (size_t p = 1; p < kDigits; ++p) {
        sum = hn::MulAdd(hn::ConvertTo(d, acc[r][p][v]), hn::Set(d, p == 1 ? 256.0f : 65536.0f), sum);
      }
      if (v * N < count) hn::StoreN(hn::Mul(sum, factor), d, s + r * lds + v * N, count - v * N);
    }
  }
}

// As DotRows.
template <size_t kDigits, int kBits>
HWY_NOINLINE void DotDigits(const DigitQueries& queries, size_t row, size_t rows, const RowSource& keys, size_t count,
                            float* s, size_t lds, RowFetch fetch) {
  constexpr size_t N = kLanes<float>;
  fetch.SpreadOver((count + 2 * N - 1) / (2 * N) * ((rows + 3) / 4) * queries.words());
  size_t j = 0;
  const auto some_keys = [&](auto vectors) HWY_ATTR {
    constexpr size_t V = decltype(vectors)::value;
    TransposeRows<float>(reinterpret_cast<const float*>(keys.Row(static_cast<int64_t>(j))),
                         static_cast<size_t>(keys.stride_bytes) / sizeof(float), std::min(V * N, count - j),
                         queries.words(), queries.words_of_keys(), V * N);
    size_t r = 0;
    const auto block = [&](auto mr) HWY_ATTR {
      constexpr size_t R = decltype(mr)::value;
      for (; r + R <= rows; r += R) {
        DotWords<R, V, kDigits, kBits>(queries, row + r, keys, count - j, s + r * lds + j, lds, fetch);
      }
    };
    block(std::integral_constant<size_t, 4>());
    block(std::integral_constant<size_t, 2>());
    block(std::integral_constant<size_t, 1>());
    j += V * N;
  };
  while (j + N < count) some_keys(std::integral_constant<size_t, 2>());
  if (j < count) some_keys(std::integral_constant<size_t, 1>());
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
