// Many bfloat16 query rows on CPUs that multiply pairs of bfloat16 and add them to floats: twice the rate of float.
//
// Keys and values are pairs along the summed axis: keys of columns (2i, 2i+1), values of tokens (2i, 2i+1). Codes are
// exact in bfloat16; their scales are folded into scores and weights. Weights are rounded to bfloat16, whose error
// (2^-8 of each at most) is that of the output's own rounding.
#if defined(ONNX_AI_RT_BFLOAT16_ENGINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_BFLOAT16_ENGINE_INL_H_
#undef ONNX_AI_RT_BFLOAT16_ENGINE_INL_H_
#else
#define ONNX_AI_RT_BFLOAT16_ENGINE_INL_H_
#endif

#include "kernels/tile_engine-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

#ifdef HWY_NATIVE_DOT_BF16
inline constexpr bool kMultipliesBFloat16 = HWY_NATIVE_DOT_BF16 && HWY_TARGET <= HWY_AVX3;
#else
inline constexpr bool kMultipliesBFloat16 = false;
#endif

// out[r][c] = out[r][c] * alpha[r] + sum over pairs k of a[r][k] . b[k][c]; as ProductBlock.
template <size_t MR, size_t NV>
HWY_INLINE bool PairBlock(const uint32_t* HWY_RESTRICT a, size_t lda, const uint32_t* HWY_RESTRICT b, size_t ldb,
                          size_t depth, const float* HWY_RESTRICT alpha, bool check, float* HWY_RESTRICT out,
                          size_t ldo) {
  const Lanes<float> d;
  const hn::Repartition<hwy::bfloat16_t, Lanes<float>> dbf;
  const hn::Repartition<uint32_t, Lanes<float>> du;
  constexpr size_t N = kLanes<float>;
  VecOf<float> acc[MR][NV];
  HWY_UNROLL(16)
  for (size_t r = 0; r < MR; ++r) {
    HWY_UNROLL(16)
    for (size_t v = 0; v < NV; ++v) {
      acc[r][v] = alpha == nullptr ? hn::Zero(d) : hn::Mul(hn::LoadU(d, out + r * ldo + v * N), hn::Set(d, alpha[r]));
    }
  }
  VecOf<float> unused = hn::Zero(d);
  for (size_t k = 0; k < depth; ++k) {
    hn::Vec<decltype(dbf)> bv[NV];
    HWY_UNROLL(16)
    for (size_t v = 0; v < NV; ++v) bv[v] = hn::BitCast(dbf, hn::LoadU(du, b + k * ldb + v * N));
    HWY_UNROLL(16)
    for (size_t r = 0; r < MR; ++r) {
      const auto av = hn::BitCast(dbf, hn::Set(du, a[r * lda + k]));
      HWY_UNROLL(16)
      for (size_t v = 0; v < NV; ++v) acc[r][v] = hn::ReorderWidenMulAccumulate(d, av, bv[v], acc[r][v], unused);
    }
  }
  if (check) {
    VecOf<float> poison = hn::Zero(d);
    HWY_UNROLL(16)
    for (size_t r = 0; r < MR; ++r) {
      HWY_UNROLL(16)
      for (size_t v = 0; v < NV; ++v) poison = hn::Add(poison, hn::Sub(acc[r][v], acc[r][v]));
    }
    if (!hn::AllFalse(d, hn::IsNaN(poison))) return false;
  }
  HWY_UNROLL(16)
  for (size_t r = 0; r < MR; ++r) {
    HWY_UNROLL(16)
    for (size_t v = 0; v < NV; ++v) hn::StoreU(acc[r][v], d, out + r * ldo + v * N);
  }
  return true;
}

// As AccumulateRows; `columns` is a multiple of the lanes.
inline HWY_NOINLINE void AccumulatePairs(const uint32_t* a, size_t lda, size_t rows, const uint32_t* b, size_t ldb,
                                         size_t columns, size_t depth, const float* alpha, const OnReject* reject,
                                         float* out, size_t ldo) {
  constexpr size_t N = kLanes<float>;
  size_t c = 0;
  const auto run = [&](auto nv) HWY_ATTR {
    constexpr size_t NV = decltype(nv)::value;
    size_t r = 0;
    const auto block = [&](auto mr) HWY_ATTR {
      constexpr size_t MR = decltype(mr)::value;
      const float* scale = alpha == nullptr ? nullptr : alpha + r;
      if (!PairBlock<MR, NV>(a + r * lda, lda, b + c, ldb, depth, scale, reject != nullptr, out + r * ldo + c, ldo)) {
        reject->call(reject->context, r, MR, c, NV * N);
      }
      r += MR;
    };
    while (r + kMaxRows <= rows) block(std::integral_constant<size_t, kMaxRows>());
    if (r + 4 <= rows) block(std::integral_constant<size_t, 4>());
    if (r + 2 <= rows) block(std::integral_constant<size_t, 2>());
    if (r < rows) block(std::integral_constant<size_t, 1>());
    c += NV * N;
  };
  while (c + 4 * N <= columns) run(std::integral_constant<size_t, 4>());
  if (c + 2 * N <= columns) run(std::integral_constant<size_t, 2>());
  if (c < columns) run(std::integral_constant<size_t, 1>());
}

class BFloat16Engine final : public TileEngine<float> {
 public:
  // Whether the item's types are exact in bfloat16.
  static bool Serves(const AttentionItem& item) {
    if (!kMultipliesBFloat16 || item.query_dtype != DType::kBFloat16) return false;
    return std::all_of(item.runs, item.runs + item.run_count,
                       [](const KeyRun& run) { return IsExact(run.key) && IsExact(run.value); });
  }

  BFloat16Engine(RowBuffers<float>& rows, const KeyTile& tile)
      : TileEngine<float>(rows, tile),
        pairs_((rows.item.head_size + 1) / 2),
        gather_stride_(std::max(2 * RoundUpToGroup<float>(pairs_), 2 * rows.ldo)),
        queries_(Allocate<uint32_t>(rows.item.rows() * pairs_)),
        keys_(Allocate<uint32_t>(pairs_ * kLdt)),
        values_(Allocate<uint32_t>(kTileKeys / 2 * rows.ldo)),
        gathered_(Allocate<uint16_t>(kTileKeys * gather_stride_)),
        floats_(Allocate<float>(gather_stride_)),
        weights_(Allocate<uint32_t>(kChunkRows * kTileKeys / 2)) {
    std::fill(queries_.get(), queries_.get() + item_.rows() * pairs_, 0u);
    for (int64_t r = 0; r < item_.rows(); ++r) {
      std::memcpy(queries_.get() + r * pairs_, QueryRow(item_, r), static_cast<size_t>(item_.head_size) * 2);
    }
  }

  void Pack(int64_t width, bool values) override {
    const Rows keys = RowsOf(&KeySlice::key, width, item_.head_size);
    // A pair of columns moves as one float would.
    TransposeRows(reinterpret_cast<const float*>(keys.data), static_cast<size_t>(keys.stride / 2),
                  static_cast<size_t>(width), static_cast<size_t>(pairs_), reinterpret_cast<float*>(keys_.get()),
                  static_cast<size_t>(kLdt));
    if (values) PackValues(width);
  }

  void Dots(int64_t row, int64_t count, int64_t width, RowFetch fetch) override {
    fetch.All();
    AccumulatePairs(queries_.get() + row * pairs_, static_cast<size_t>(pairs_), static_cast<size_t>(count), keys_.get(),
                    static_cast<size_t>(kLdt), static_cast<size_t>(RoundUpToLanes<float>(width)),
                    static_cast<size_t>(pairs_), nullptr, nullptr, rows_.scores, static_cast<size_t>(kTileKeys));
    for (const KeySlice& s : tile_) {
      if (s.begin >= width) break;
      MultiplyScores(count, s.begin, std::min(s.count, width - s.begin), s.key.scale);
    }
  }

  void AddValues(int64_t row, int64_t count, int64_t width, const float* alpha, bool some_hidden) override {
    for (const KeySlice& s : tile_) {
      if (s.begin >= width) break;
      MultiplyScores(count, s.begin, std::min(s.count, width - s.begin), s.value.scale);
    }
    RoundWeights(count, width);
    const auto careful = [&](size_t r, size_t rows, size_t column, size_t columns) HWY_ATTR {
      for (size_t i = r; i < r + rows; ++i)
        AddVisiblePairs(row, static_cast<int64_t>(i), width, alpha[i], column, columns);
    };
    const OnReject reject = RejectTo(careful);
    AccumulatePairs(weights_.get(), static_cast<size_t>(kTileKeys / 2), static_cast<size_t>(count), values_.get(),
                    static_cast<size_t>(rows_.ldo), static_cast<size_t>(RoundUpToLanes<float>(item_.v_head_size)),
                    static_cast<size_t>((width + 1) / 2), alpha, some_hidden ? &reject : nullptr,
                    rows_.output + row * rows_.ldo, static_cast<size_t>(rows_.ldo));
  }

 private:
  static constexpr int64_t kLdt = kTileKeys + static_cast<int64_t>(kLanes<float>);

  // Rows of bfloat16, `stride` apart.
  struct Rows {
    const uint16_t* data;
    int64_t stride;
  };

  static bool IsExact(const RowSource& rows) {
    return rows.payload == nullptr && (rows.dtype == DType::kBFloat16 || IsCodeType(rows.dtype));
  }

  // One side of the tile's first `width` keys: as stored, or gathered, with an odd row filled up with 0.
  Rows RowsOf(RowSource KeySlice::* side, int64_t width, int64_t columns) {
    const RowSource& first = tile_.begin()->*side;
    if (tile_.size() == 1 && first.dtype == DType::kBFloat16 && columns % 2 == 0 && first.stride_bytes % 4 == 0) {
      return {reinterpret_cast<const uint16_t*>(first.data), first.stride_bytes / 2};
    }
    for (const KeySlice& s : tile_) {
      if (s.begin >= width) break;
      const RowSource& source = s.*side;
      for (int64_t r = 0; r < s.count; ++r) {
        uint16_t* const to = gathered_.get() + (s.begin + r) * gather_stride_;
        if (source.dtype == DType::kBFloat16) {
          std::memcpy(to, source.Row(r), static_cast<size_t>(columns) * 2);
        } else {
          RoundRow(source, r, columns, to);
        }
        if (columns % 2 != 0) to[columns] = 0;
      }
    }
    return {gathered_.get(), gather_stride_};
  }

  // Codes less their zero point: at most 9 bits with sign, exact.
  void RoundRow(const RowSource& source, int64_t r, int64_t columns, uint16_t* to) {
    const Lanes<float> d;
    WithType<float>(source.dtype, [&](auto element) HWY_ATTR {
      using T = decltype(element);
      if constexpr (IsCode<T>()) {
        ConvertRow(Reader<T>(source, 0), static_cast<size_t>(r), static_cast<size_t>(columns), 1.0f, floats_.get());
      }
    });
    const hn::Rebind<uint16_t, Lanes<float>> du16;
    for (int64_t c = 0; c < columns; c += static_cast<int64_t>(kLanes<float>)) {
      hn::StoreU(BFloat16Bits(d, hn::Load(d, floats_.get() + c)), du16, to + c);
    }
  }

  // Values of tokens 2i and 2i + 1 side by side; a token beyond `width` is 0.
  void PackValues(int64_t width) {
    const Rows rows = RowsOf(&KeySlice::value, width, item_.v_head_size);
    const hn::ScalableTag<uint16_t> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    const int64_t columns = item_.v_head_size;
    for (int64_t i = 0; 2 * i < width; ++i) {
      const uint16_t* const even = rows.data + 2 * i * rows.stride;
      const uint16_t* const odd = even + rows.stride;
      uint16_t* const to = reinterpret_cast<uint16_t*>(values_.get() + i * rows_.ldo);
      for (int64_t c = 0; c < columns; c += lanes) {
        const size_t count = static_cast<size_t>(std::min(lanes, columns - c));
        const auto a = hn::LoadN(d, even + c, count);
        const auto b = 2 * i + 1 < width ? hn::LoadN(d, odd + c, count) : hn::Zero(d);
        hn::StoreU(hn::InterleaveWholeLower(d, a, b), d, to + 2 * c);
        hn::StoreU(hn::InterleaveWholeUpper(d, a, b), d, to + 2 * c + lanes);
      }
    }
  }

  void RoundWeights(int64_t count, int64_t width) {
    const Lanes<float> d;
    const hn::Repartition<hwy::bfloat16_t, Lanes<float>> dbf;
    const int64_t step = 2 * static_cast<int64_t>(kLanes<float>);
    for (int64_t r = 0; r < count; ++r) {
      const float* const from = rows_.scores + r * kTileKeys;
      hwy::bfloat16_t* const to = reinterpret_cast<hwy::bfloat16_t*>(weights_.get() + r * kTileKeys / 2);
      for (int64_t k = 0; k < width; k += step) {
        hn::StoreU(hn::OrderedDemote2To(dbf, hn::Load(d, from + k), hn::Load(d, from + k + step / 2)), dbf, to + k);
      }
    }
  }

  // Row row + i of one register block again, where a sum was not finite: with values of 0 for its hidden keys, whose
  // weights of 0 would make NaN of NaN. Slow and rare; bit for bit what finite hidden values give.
  HWY_NOINLINE void AddVisiblePairs(int64_t row, int64_t i, int64_t width, float alpha, size_t column, size_t columns) {
    if (!visible_) visible_ = Allocate<uint32_t>(kTileKeys / 2 * rows_.ldo);
    const float* const bias = rows_.row_bias[i];
    const auto sees = [&](int64_t key) { return bias != nullptr && key < width && bias[key] != kMinusInfinity<float>; };
    for (int64_t pair = 0; 2 * pair < width; ++pair) {
      const uint32_t mask = (sees(2 * pair) ? 0x0000FFFFu : 0u) | (sees(2 * pair + 1) ? 0xFFFF0000u : 0u);
      for (int64_t c = pair * rows_.ldo; c < (pair + 1) * rows_.ldo; ++c) visible_[c] = values_[c] & mask;
    }
    AccumulatePairs(weights_.get() + i * kTileKeys / 2, static_cast<size_t>(kTileKeys / 2), 1, visible_.get() + column,
                    static_cast<size_t>(rows_.ldo), columns, static_cast<size_t>((width + 1) / 2), &alpha, nullptr,
                    rows_.output + (row + i) * rows_.ldo + column, static_cast<size_t>(rows_.ldo));
  }

  const int64_t pairs_;                             // of columns of a key
  const int64_t gather_stride_;                     // of gathered_
  hwy::AlignedFreeUniquePtr<uint32_t[]> queries_;   // rows x pairs
  hwy::AlignedFreeUniquePtr<uint32_t[]> keys_;      // pairs x kLdt
  hwy::AlignedFreeUniquePtr<uint32_t[]> values_;    // tile / 2 x ldo
  hwy::AlignedFreeUniquePtr<uint32_t[]> visible_;   // as values_, for one row
  hwy::AlignedFreeUniquePtr<uint16_t[]> gathered_;  // tile x gather_stride
  hwy::AlignedFreeUniquePtr<float[]> floats_;       // one row
  hwy::AlignedFreeUniquePtr<uint32_t[]> weights_;   // chunk x tile / 2
};

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
