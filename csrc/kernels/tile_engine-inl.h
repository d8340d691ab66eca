// How a tile meets the query rows: the interface of the engines, and what they share. Compiled once per target.
//
// DirectEngine    few rows: dot products on K and V as they are stored
// PackedEngine    many rows: K transposed and V promoted once a tile
// BFloat16Engine  many bfloat16 rows where the CPU multiplies bfloat16 pairs; also float16 where it multiplies tiles
#if defined(ONNX_AI_RT_TILE_ENGINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_TILE_ENGINE_INL_H_
#undef ONNX_AI_RT_TILE_ENGINE_INL_H_
#else
#define ONNX_AI_RT_TILE_ENGINE_INL_H_
#endif

#include "kernels/digit_weights-inl.h"
#include "kernels/key_tile.h"
#include "kernels/scores-inl.h"
#include "kernels/scratch.h"
#include "kernels/tile_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// Rows that go through a tile together: their scores stay in the first-level cache.
inline constexpr int64_t kChunkRows = 4 * kMaxRows;
inline constexpr int64_t kMostChunkRows = 32;  // of any engine

template <typename C>
int64_t RoundUpToLanes(int64_t n) {
  constexpr int64_t N = static_cast<int64_t>(kLanes<C>);
  return (n + N - 1) / N * N;
}

// Rows of queries and outputs have room for whole column groups.
template <typename C>
int64_t RoundUpToGroup(int64_t n) {
  constexpr int64_t kGroup = static_cast<int64_t>(kColumnGroup<C>);
  return (n + kGroup - 1) / kGroup * kGroup;
}

// The item's rows and the chunk of them that is at work.
template <typename C>
struct RowBuffers {
  const AttentionItem& item;
  Scratch& scratch;
  int64_t ldo = 0;      // of output
  C* output = nullptr;  // rows x ldo, not divided yet
  C* scores = nullptr;  // chunk x tile: dot products, then weights
  // Of the chunk; null: the row sees no key of the tile. Set where some are hidden.
  const C* row_bias[kMostChunkRows] = {};
  bool is_tame[kMostChunkRows] = {};  // that bias
};

// Known to the compiler, which saves registers.
using kScoreStride = std::integral_constant<size_t, static_cast<size_t>(kTileKeys)>;

// First element of query row `row`.
inline const uint8_t* QueryRow(const AttentionItem& item, int64_t row) {
  const int64_t token = item.token_begin + row / item.group;
  const int64_t first = row % item.group * item.query_head_stride + token * item.query_token_stride;
  return item.query + first * static_cast<int64_t>(BytesOf(item.query_dtype));
}

// All query rows as the compute type, `stride` apart, filled up with 0, which adds nothing to a dot product.
template <typename C>
HWY_NOINLINE void PackQueries(const AttentionItem& item, int64_t stride, C* to) {
  std::fill(to, to + item.rows() * stride, C{0});
  WithType<C>(item.query_dtype, [&](auto element) HWY_ATTR {
    if constexpr (!IsCode<decltype(element)>()) {
      for (int64_t r = 0; r < item.rows(); ++r) {
        ConvertRow(Reader<decltype(element)>(QueryRow(item, r), 0), 0, static_cast<size_t>(item.head_size), C{1},
                   to + r * stride);
      }
    }
  });
}

template <typename C>
class TileEngine {
 public:
  TileEngine(RowBuffers<C>& rows, const KeyTile& tile) : item_(rows.item), rows_(rows), tile_(tile) {}
  virtual ~TileEngine() = default;

  // Rows of a chunk, at most.
  virtual int64_t ChunkRows() const { return kChunkRows; }
  // The tile has moved; its first `width` keys will be used. values: also their values.
  virtual void Pack(int64_t width, bool values) = 0;
  // scores = q . k for the chunk [row, row + count) and the tile's first `width` keys. Does `fetch` on the way.
  virtual void Dots(int64_t row, int64_t count, int64_t width, RowFetch fetch) = 0;
  // By how much weights are to be multiplied for the values' sake before AddValues.
  virtual C ValueScale() const { return C{1}; }
  // Where AddValues wants them as digits, too.
  virtual DigitWeights* WeightDigits() { return nullptr; }
  // output = output * alpha + weights . values. some_hidden: a key of weight 0 may hold NaN that must not count.
  virtual void AddValues(int64_t row, int64_t count, int64_t width, const C* alpha, bool some_hidden) = 0;

 protected:
  // scores [0, count) x [begin, begin + keys) times `scale`.
  void MultiplyScores(int64_t count, int64_t begin, int64_t keys, float scale) {
    if (scale == 1.0f) return;
    const Lanes<C> d;
    const VecOf<C> by = hn::Set(d, static_cast<C>(scale));
    constexpr int64_t N = static_cast<int64_t>(kLanes<C>);
    for (int64_t i = 0; i < count; ++i) {
      C* const s = rows_.scores + i * kTileKeys + begin;
      int64_t k = 0;
      for (; k + N <= keys; k += N) hn::StoreU(hn::Mul(hn::LoadU(d, s + k), by), d, s + k);
      if (k < keys) {
        const size_t rest = static_cast<size_t>(keys - k);
        hn::StoreN(hn::Mul(hn::LoadN(d, s + k, rest), by), d, s + k, rest);
      }
    }
  }

  // One side of the tile's first `width` keys as rows of the compute type, `stride` apart.
  void GatherRows(RowSource KeySlice::* side, int64_t width, int64_t columns, int64_t stride, C* to) {
    for (const KeySlice& s : tile_) {
      if (s.begin >= width) break;
      const RowSource& source = s.*side;
      WithType<C>(source.dtype, [&](auto element) HWY_ATTR {
        const Reader<decltype(element)> rows(source, 0);
        for (int64_t r = 0; r < s.count; ++r) {
          ConvertRow(rows, static_cast<size_t>(r), static_cast<size_t>(columns), static_cast<C>(source.scale),
                     to + (s.begin + r) * stride);
        }
      });
    }
  }

  // AddValues with values of the tile's keys [begin, begin + depth) as rows.
  template <typename T, class Fetch = NoFetch>
  HWY_INLINE void AddRows(const Reader<T>& values, int64_t row, int64_t count, int64_t begin, int64_t depth,
                          const C* alpha, bool some_hidden, const Fetch& fetch = Fetch()) {
    const auto careful = [&](size_t r, size_t rows, size_t column, size_t columns) HWY_ATTR {
      for (size_t i = r; i < r + rows; ++i) {
        AddVisible(values, row, static_cast<int64_t>(i), begin, depth, alpha[i], column, columns);
      }
    };
    const OnReject reject = RejectTo(careful);
    AccumulateRows(rows_.scores + begin, kScoreStride(), static_cast<size_t>(count), values,
                   static_cast<size_t>(item_.v_head_size), static_cast<size_t>(depth), alpha,
                   some_hidden ? &reject : nullptr, rows_.output + row * rows_.ldo, static_cast<size_t>(rows_.ldo),
                   fetch);
  }

  template <class F>
  static OnReject RejectTo(const F& f) {
    return {[](const void* context, size_t r, size_t rows, size_t column, size_t columns) {
              (*static_cast<const F*>(context))(r, rows, column, columns);
            },
            &f};
  }

  // Row row + i and columns of one register block again, where a sum was not finite: a hidden key has weight 0, and
  // 0 * NaN must not count. Slow and rare.
  template <typename T>
  HWY_NOINLINE void AddVisible(const Reader<T>& values, int64_t row, int64_t i, int64_t begin, int64_t depth, C alpha,
                               size_t first_column, size_t block_columns) {
    const Lanes<C> d;
    constexpr size_t P = kPlanes<T>;
    constexpr size_t kStep = P * kLanes<C>;
    const C* const weights = rows_.scores + i * kTileKeys + begin;
    const C* const bias = rows_.row_bias[i];
    if (bias == nullptr) depth = 0;
    const size_t columns = static_cast<size_t>(item_.v_head_size);
    const size_t last_column = std::min(first_column + block_columns, columns);
    for (size_t c = first_column; c < last_column; c += kStep) {
      C* const output = rows_.output + (row + i) * rows_.ldo + c;
      VecOf<C> sum[P];
      for (size_t p = 0; p < P; ++p) sum[p] = hn::Mul(hn::LoadU(d, output + p * kLanes<C>), hn::Set(d, alpha));
      ToPlanes<C>(sum);
      for (int64_t k = 0; k < depth; ++k) {
        if (bias[begin + k] == kMinusInfinity<C>) continue;
        VecOf<C> v[P];
        values.template LoadN<C>(values.Row(static_cast<size_t>(k)), c, std::min(kStep, columns - c), v);
        for (size_t p = 0; p < P; ++p) sum[p] = hn::MulAdd(hn::Set(d, weights[k]), v[p], sum[p]);
      }
      FromPlanes<C>(sum);
      for (size_t p = 0; p < P; ++p) hn::StoreU(sum[p], d, output + p * kLanes<C>);
    }
  }

  const AttentionItem& item_;
  RowBuffers<C>& rows_;
  const KeyTile& tile_;
};

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
