// Weights of few query rows times value rows of codes, in whole numbers: the other half of digit_dots-inl.h. Compiled
// once per target.
//
// What digits are: digit_weights-inl.h.
#if defined(ONNX_AI_RT_DIGIT_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_DIGIT_VALUES_INL_H_
#undef ONNX_AI_RT_DIGIT_VALUES_INL_H_
#else
#define ONNX_AI_RT_DIGIT_VALUES_INL_H_
#endif

#include "kernels/digit_weights-inl.h"
#include "kernels/row_fetch.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// Value rows of codes, which are whole vectors of bytes.
struct CodeRows {
  const uint8_t* first;
  int64_t stride;              // bytes
  size_t begin, count, bytes;  // the keys, counted from the tile's first
  uint8_t flip;                // of each byte, which makes its codes signed bytes or unsigned ones of less bits
  int32_t zero;                // of these
  float scale;
};

inline constexpr size_t kValueBytes = 64;

template <int kBits>
CodeRows RowsOfCodes(const RowSource& values, size_t begin, size_t count, size_t columns) {
  // Bytes become signed, codes of less bits unsigned.
  const bool flips = IsSignedCode(values.dtype) == (kBits < 8);
  const int32_t moved_by = kBits == 8 ? -kHalfRange<kBits> : kHalfRange<kBits>;
  return {values.data,
          values.stride_bytes,
          begin,
          count,
          columns * kBits / 8,
          flips ? kSignBits<kBits> : uint8_t{0},
          values.zero_point + (flips ? moved_by : 0),
          values.scale};
}

// Neighbouring columns of each block of 128 bits from planes of them.
template <class V>
HWY_INLINE void JoinPlanes(V (&)[1]) {}
template <class V>
HWY_INLINE void JoinPlanes(V (&v)[2]) {
  const hn::DFromV<V> d;
  const V lower = hn::InterleaveLower(d, v[0], v[1]);
  v[1] = hn::InterleaveUpper(d, v[0], v[1]);
  v[0] = lower;
}
template <class V>
HWY_INLINE void JoinPlanes(V (&v)[4]) {
  TransposeInBlocks<float>(v[0], v[1], v[2], v[3]);
}

// The sums of the digits of a row's weights, in the first lanes.
HWY_INLINE hn::Vec<hn::RebindToSigned<Lanes<float>>> SumDigits(const DigitWeights& weights, size_t row,
                                                               const CodeRows& rows) {
  const hn::RebindToSigned<Lanes<float>> di;
  const hn::Repartition<uint8_t, decltype(di)> du8;
  const hn::Repartition<int8_t, decltype(di)> ds8;
  constexpr size_t N = kLanes<float>;
  auto sums = hn::Zero(di);
  for (size_t k = 0; k < rows.count; k += N) {
    const auto digits = hn::LoadN(du8, weights.Digits(row, rows.begin + k), (rows.count - k + 3) / 4 * kWordOfDigits);
    sums = AddByteProducts(digits, hn::Set(ds8, 1), sums);
  }
  return SumBlocks(sums);
}

// w[r] . codes for R weight rows from `row` on, and of each 16 bytes of the 64 from `at` on the words kFirst to
// kFirst + V - 1: what comes together when four rows are interleaved. To sums[r][kFirst...], by plane. zeros: what sums
// of digits start from.
template <size_t R, size_t V, size_t kFirst, int kBits, size_t P = kPlanes<Code<kBits>>>
HWY_INLINE void DotValueCodes(const DigitWeights& weights, size_t row, const CodeRows& rows, size_t at,
                              const int32_t (*HWY_RESTRICT zeros)[4], VecOf<float> (*HWY_RESTRICT sums)[4][P],
                              RowFetch& shared_fetch) {
  const Lanes<float> d;
  const hn::Repartition<int32_t, decltype(d)> di;
  const hn::Repartition<uint16_t, decltype(d)> du16;
  const hn::Repartition<uint8_t, decltype(d)> du8;
  const hn::Repartition<int8_t, decltype(d)> ds8;
  using V8 = hn::Vec<decltype(du8)>;
  const V8 flip = hn::Set(du8, rows.flip);
  hn::Vec<decltype(di)> acc[R][V][P][3];
  HWY_UNROLL(4)
  for (size_t r = 0; r < R; ++r) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < V; ++v) {
      HWY_UNROLL(4)
      for (size_t p = 0; p < P; ++p) {
        HWY_UNROLL(4)
        for (size_t i = 0; i < 3; ++i) acc[r][v][p][i] = hn::Set(di, zeros[r][i]);
      }
    }
  }
  const uint8_t* digits = weights.Digits(row, rows.begin);
  const uint8_t* from = rows.first + at;
  int64_t second = rows.stride, third = 2 * rows.stride, fourth = 3 * rows.stride;
  RowFetch fetch = shared_fetch;
  for (size_t k = 0; k < rows.count; k += 4) {
    fetch.Step();
    if (HWY_UNLIKELY(k + 4 > rows.count)) {
      // Behind the last row the first of the four again, of weight 0.
      if (k + 1 >= rows.count) second = 0;
      if (k + 2 >= rows.count) third = 0;
      fourth = 0;
    }
    const uint8_t *from1 = from + second, *from2 = from + third, *from3 = from + fourth;
    OnePointer(from1), OnePointer(from2), OnePointer(from3);
    const V8 row0 = hn::LoadU(du8, from), row1 = hn::LoadU(du8, from1);
    const V8 row2 = hn::LoadU(du8, from2), row3 = hn::LoadU(du8, from3);
    from += 4 * rows.stride;
    const auto lower01 = hn::BitCast(du16, hn::InterleaveLower(du8, row0, row1));
    const auto lower23 = hn::BitCast(du16, hn::InterleaveLower(du8, row2, row3));
    const auto upper01 = hn::BitCast(du16, hn::InterleaveUpper(du8, row0, row1));
    const auto upper23 = hn::BitCast(du16, hn::InterleaveUpper(du8, row2, row3));
    V8 raw[V];
    HWY_UNROLL(4)
    for (size_t v = 0; v < V; ++v) {
      const auto pair01 = kFirst + v < 2 ? lower01 : upper01;
      const auto pair23 = kFirst + v < 2 ? lower23 : upper23;
      const bool is_even = (kFirst + v) % 2 == 0;
      const auto four = is_even ? hn::InterleaveLower(du16, pair01, pair23) : hn::InterleaveUpper(du16, pair01, pair23);
      raw[v] = hn::Xor(hn::BitCast(du8, four), flip);
    }
    hn::Vec<decltype(ds8)> codes[P][V];
    HWY_UNROLL(4)
    for (size_t p = 0; p < P; ++p) {
      HWY_UNROLL(4)
      for (size_t v = 0; v < V; ++v) {
        codes[p][v] = hn::BitCast(ds8, CodesOfPlane<kBits>(raw[v], p));
      }
    }
    HWY_UNROLL(4)
    for (size_t r = 0; r < R; ++r) {
      HWY_UNROLL(4)
      for (size_t i = 0; i < 3; ++i) {
        const auto four = BroadcastWord(du8, digits + r * kTileKeys * 4 + i * 4);
        HWY_UNROLL(4)
        for (size_t p = 0; p < P; ++p) {
          HWY_UNROLL(4)
          for (size_t v = 0; v < V; ++v) acc[r][v][p][i] = AddByteProducts(four, codes[p][v], acc[r][v][p][i]);
        }
      }
    }
    digits += kWordOfDigits;
  }
  shared_fetch = fetch;
  HWY_UNROLL(4)
  for (size_t r = 0; r < R; ++r) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < V; ++v) {
      HWY_UNROLL(4)
      for (size_t p = 0; p < P; ++p) sums[r][kFirst + v][p] = JoinDigits(acc[r][v][p]);
    }
  }
}

// out[r][c] = out[r][c] * alpha[r] + w[r] . values[c] for R rows from `row` on, and the columns of 64 bytes from `at`
// on.
template <size_t R, int kBits>
HWY_INLINE void AddValueColumns(const DigitWeights& weights, size_t row, const CodeRows& rows, size_t at,
                                const float* HWY_RESTRICT alpha, float* HWY_RESTRICT out, size_t ldo, RowFetch& fetch) {
  const Lanes<float> d;
  constexpr size_t P = kPlanes<Code<kBits>>;
  constexpr size_t N = kLanes<float>;
  constexpr size_t V = 4 / P;  // 12 R sums and 4 vectors of codes
  HWY_ALIGN int32_t zeros[R][4] = {};
  if (rows.zero != 0) {
    const hn::RebindToSigned<decltype(d)> di;
    for (size_t r = 0; r < R; ++r) {
      hn::StoreN(hn::Mul(SumDigits(weights, row + r, rows), hn::Set(di, -rows.zero)), di, zeros[r], 4);
    }
  }
  VecOf<float> sums[R][4][P];
  DotValueCodes<R, V, 0, kBits>(weights, row, rows, at, zeros, sums, fetch);
  if constexpr (V == 2) DotValueCodes<R, V, 2, kBits>(weights, row, rows, at, zeros, sums, fetch);
  if constexpr (V == 1) {
    DotValueCodes<R, V, 1, kBits>(weights, row, rows, at, zeros, sums, fetch);
    DotValueCodes<R, V, 2, kBits>(weights, row, rows, at, zeros, sums, fetch);
    DotValueCodes<R, V, 3, kBits>(weights, row, rows, at, zeros, sums, fetch);
  }
  HWY_UNROLL(4)
  for (size_t r = 0; r < R; ++r) {
    const VecOf<float> step = hn::Set(d, weights.Step(row + r) * rows.scale), by = hn::Set(d, alpha[r]);
    VecOf<float> words[4 * P];  // block b of number m: columns 16 P b + 4 m to 16 P b + 4 m + 3
    HWY_UNROLL(4)
    for (size_t v = 0; v < 4; ++v) {
      JoinPlanes(sums[r][v]);
      HWY_UNROLL(4)
      for (size_t p = 0; p < P; ++p) words[v * P + p] = sums[r][v][p];
    }
    HWY_UNROLL(4)
    for (size_t p = 0; p < P; ++p) {
      VecOf<float>* const w = words + 4 * p;
      TransposeBlocks<float>(w[0], w[1], w[2], w[3]);
      HWY_UNROLL(4)
      for (size_t b = 0; b < 4; ++b) {
        float* const to = out + r * ldo + (b * P + p) * N;
        hn::StoreU(hn::MulAdd(w[b], step, hn::Mul(hn::LoadU(d, to), by)), d, to);
      }
    }
  }
}

// As AccumulateRows.
template <int kBits>
HWY_NOINLINE void AddDigits(const DigitWeights& weights, size_t rows, const CodeRows& values, const float* alpha,
                            float* out, size_t ldo, RowFetch fetch) {
  constexpr size_t P = kPlanes<Code<kBits>>;
  constexpr size_t kMost = P == 4 ? 1 : 2;
  const size_t passes = values.bytes / kValueBytes * ((rows + kMost - 1) / kMost) * (P == 1 ? 1 : 2);
  fetch.SpreadOver(passes * ((values.count + 3) / 4));
  for (size_t at = 0; at < values.bytes; at += kValueBytes, out += kValueBytes * P) {
    size_t r = 0;
    for (; r + kMost <= rows; r += kMost) {
      AddValueColumns<kMost, kBits>(weights, r, values, at, alpha + r, out + r * ldo, ldo, fetch);
    }
    if (r < rows) AddValueColumns<1, kBits>(weights, r, values, at, alpha + r, out + r * ldo, ldo, fetch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
