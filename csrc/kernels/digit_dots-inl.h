// Few query rows against rows of codes, in whole numbers: where the CPU adds four products of bytes in one instruction
// (AVX-512 VNNI), codes need not become floats. Compiled once per target.
//
// What digits are: digit_queries-inl.h.
#if defined(ONNX_AI_RT_DIGIT_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_DIGIT_DOTS_INL_H_
#undef ONNX_AI_RT_DIGIT_DOTS_INL_H_
#else
#define ONNX_AI_RT_DIGIT_DOTS_INL_H_
#endif

#include "kernels/digit_queries-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// R query rows from `row` on against a key in each lane of V vectors, whose words are columns: s[r] = q[r] . k * scale
// of the first `count` keys.
template <size_t R, size_t V, size_t kDigits, int kBits>
HWY_INLINE void DotWords(const DigitQueries& queries, size_t row, const RowSource& keys, size_t count,
                         float* HWY_RESTRICT s, size_t lds, RowFetch& shared_fetch) {
  const hn::ScalableTag<int32_t> di;
  const hn::ScalableTag<uint8_t> du8;
  const hn::ScalableTag<int8_t> ds8;
  const Lanes<float> d;
  constexpr size_t N = kLanes<float>;
  constexpr size_t P = kPlanes<Code<kBits>>;
  // Codes become unsigned.
  const bool flips = IsSignedCode(keys.dtype);
  const auto flip = hn::Set(du8, flips ? kSignBits<kBits> : uint8_t{0});
  const int32_t zero = keys.zero_point + (flips ? kHalfRange<kBits> : 0);
  hn::Vec<decltype(di)> acc[R][V][kDigits];
  HWY_UNROLL(4)
  for (size_t r = 0; r < R; ++r) {
    HWY_UNROLL(4)
    for (size_t p = 0; p < kDigits; ++p) {
      HWY_UNROLL(4)
      for (size_t v = 0; v < V; ++v) acc[r][v][p] = hn::Set(di, -zero * queries.Sum(row + r, p));
    }
  }
  const uint8_t* digits[R];
  HWY_UNROLL(4)
  for (size_t r = 0; r < R; ++r) digits[r] = queries.Digits(row + r);
  const float* const words = queries.words_of_keys();
  RowFetch fetch = shared_fetch;
  for (size_t w = 0; w < queries.words(); ++w) {
    fetch.Step();
    hn::Vec<decltype(du8)> raw[V];
    HWY_UNROLL(4)
    for (size_t v = 0; v < V; ++v) raw[v] = hn::Xor(hn::BitCast(du8, hn::Load(d, words + (w * V + v) * N)), flip);
    HWY_UNROLL(4)
    for (size_t plane = 0; plane < P; ++plane) {
      hn::Vec<decltype(du8)> codes[V];
      HWY_UNROLL(4)
      for (size_t v = 0; v < V; ++v) codes[v] = CodesOfPlane<kBits>(raw[v], plane);
      HWY_UNROLL(4)
      for (size_t p = 0; p < kDigits; ++p) {
        HWY_UNROLL(4)
        for (size_t r = 0; r < R; ++r) {
          const auto four = BroadcastWord(ds8, digits[r] + (w * P + plane) * kWordOfDigits + 4 * p);
          HWY_UNROLL(4)
          for (size_t v = 0; v < V; ++v) acc[r][v][p] = AddByteProducts(codes[v], four, acc[r][v][p]);
        }
      }
    }
  }
  shared_fetch = fetch;
  HWY_UNROLL(4)
  for (size_t r = 0; r < R; ++r) {
    const VecOf<float> factor = hn::Set(d, queries.Step(row + r) * keys.scale);
    HWY_UNROLL(4)
    for (size_t v = 0; v < V; ++v) {
      const VecOf<float> scores = hn::Mul(JoinDigits(acc[r][v]), factor);
      float* const to = s + r * lds + v * N;
      if ((v + 1) * N <= count) {
        hn::StoreU(scores, d, to);  // what a mask has stored is slow to load
      } else if (v * N < count) {
        hn::StoreN(scores, d, to, count - v * N);
      }
    }
  }
}

// As DotRows.
template <size_t kDigits, int kBits>
HWY_NOINLINE void DotDigits(const DigitQueries& queries, size_t row, size_t rows, const RowSource& keys, size_t count,
                            float* s, size_t lds, RowFetch fetch) {
  constexpr size_t N = kLanes<float>;
  const auto by_rows = [&](const auto& some_rows) HWY_ATTR {
    size_t r = 0;
    for (; r + 4 <= rows; r += 4) some_rows(std::integral_constant<size_t, 4>(), r);
    if (r + 2 <= rows) some_rows(std::integral_constant<size_t, 2>(), r), r += 2;
    if (r < rows) some_rows(std::integral_constant<size_t, 1>(), r);
  };
  fetch.SpreadOver((count + 2 * N - 1) / (2 * N) * ((rows + 3) / 4) * queries.words());
  size_t j = 0;
  const auto some_keys = [&](auto vectors) HWY_ATTR {
    constexpr size_t V = decltype(vectors)::value;
    TransposeRows<float>(reinterpret_cast<const float*>(keys.Row(static_cast<int64_t>(j))),
                         static_cast<size_t>(keys.stride_bytes) / sizeof(float), std::min(V * N, count - j),
                         queries.words(), queries.words_of_keys(), V * N);
    by_rows([&](auto mr, size_t r) HWY_ATTR {
      constexpr size_t R = decltype(mr)::value;
      DotWords<R, V, kDigits, kBits>(queries, row + r, keys, count - j, s + r * lds + j, lds, fetch);
    });
    j += V * N;
  };
  while (j + N < count) some_keys(std::integral_constant<size_t, 2>());
  if (j < count) some_keys(std::integral_constant<size_t, 1>());
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
