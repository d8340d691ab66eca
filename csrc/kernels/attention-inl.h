// The streaming attention kernel: tiles of keys through an online softmax, no S x T buffer. Compiled once per target and
// compute type. What it needs beside inputs and outputs: a block of query rows and their output, and one tile.
#if defined(ONNX_AI_RT_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_ATTENTION_INL_H_
#undef ONNX_AI_RT_ATTENTION_INL_H_
#else
#define ONNX_AI_RT_ATTENTION_INL_H_
#endif

#include <array>
#include <new>

#include "hwy/aligned_allocator.h"
#include "kernels/softmax_state-inl.h"
#include "kernels/tile_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

// Rows that go through a tile together: their scores stay in the first-level cache.
inline constexpr int64_t kChunkRows = 4 * kMaxRows;

template <typename C>
class ItemRun {
 public:
  explicit ItemRun(const AttentionItem& item)
      : item_(item),
        rows_(item.rows()),
        ldq_(Padded(item.head_size)),
        ldo_(Padded(item.v_head_size)),
        direct_(rows_ <= kDirectRows),
        scale_(static_cast<C>(item.scale)),
        softcap_(static_cast<C>(item.softcap)) {
    const int64_t tile = direct_ ? 0 : item.head_size * kLdt + kTileKeys * std::max(ldq_, ldo_);
    const int64_t state = rows_ * (ldq_ + ldo_ + kN + 1);
    scratch_ = hwy::AllocateAligned<C>(static_cast<size_t>(state + tile + 2 * kChunkRows * kTileKeys + 4 * kN));
    saw_keys_ = hwy::AllocateAligned<uint8_t>(static_cast<size_t>(rows_));
    if (!scratch_ || !saw_keys_) throw std::bad_alloc();
    C* next = scratch_.get();
    const auto take = [&next](int64_t count) {
      C* start = next;
      next += RoundUp(count);
      return start;
    };
    query_ = take(rows_ * ldq_);
    output_ = take(rows_ * ldo_);
    sums_ = take(rows_ * kN);
    scores_ = take(kChunkRows * kTileKeys);
    bias_ = take(kChunkRows * kTileKeys);
    if (!direct_) {
      values_ = take(kTileKeys * std::max(ldq_, ldo_));
      keys_ = take(item.head_size * kLdt);
    }
    max_ = take(rows_);
    std::fill(output_, output_ + rows_ * ldo_, C{0});
    std::fill(sums_, sums_ + rows_ * kN, C{0});
    std::fill(max_, max_ + rows_, kMinusInfinity<C>);
    std::fill(saw_keys_.get(), saw_keys_.get() + rows_, uint8_t{0});
    PackQueries();
  }

  void Stream() {
    const int64_t last = item_.token_end - 1;
    const int64_t low = item_.visibility.Low(item_.token_begin);
    int64_t high = item_.visibility.High(last);
    if (item_.mask.data != nullptr && item_.mask.key_stride != 0) high = std::min(high, item_.mask.key_count);
    for (int64_t key = item_.key_begin; key < item_.key_end; key += kTileKeys) {
      const int64_t end = std::min(key + kTileKeys, item_.key_end);
      FindSlices(key, end);
      CopySlices();
      if (key < high && end > low) StreamTile(key, std::min(end, high));
    }
  }

  void WriteOutput() {
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t element =
          r % item_.group * item_.output_head_stride + (item_.token_begin + r / item_.group) * item_.output_token_stride;
      WriteRow(output_ + r * ldo_, RowDivisor(r), static_cast<size_t>(item_.v_head_size), item_.query_dtype,
               item_.output + element * static_cast<int64_t>(BytesOf(item_.query_dtype)));
    }
  }

  // A row that saw only scores of -inf keeps a sum of 1, which tells it from one that saw no key.
  void WritePartial() {
    C* const output = static_cast<C*>(item_.partial.output);
    C* const max = static_cast<C*>(item_.partial.max);
    C* const sum = static_cast<C*>(item_.partial.sum);
    std::copy(output_, output_ + rows_ * ldo_, output);
    for (int64_t r = 0; r < rows_; ++r) {
      max[r] = max_[r];
      sum[r] = max_[r] == kMinusInfinity<C> ? C(saw_keys_[r]) : RowSum(r);
    }
  }

  // qk_matmul_output, all keys: a second pass over the tiles, after Stream().
  void WriteScores() {
    for (int64_t key = 0; key < item_.scores.kv_len; key += kTileKeys) {
      const int64_t end = std::min(key + kTileKeys, item_.scores.kv_len);
      FindSlices(key, end);
      PackKeys(end - key);
      for (int64_t r = 0; r < rows_; r += kChunkRows) {
        const int64_t count = std::min<int64_t>(kChunkRows, rows_ - r);
        DotProducts(r, count, end - key);
        for (int64_t i = 0; i < count; ++i) WriteScoreRow(r + i, key, end - key, scores_ + i * kTileKeys);
      }
    }
  }

 private:
  static constexpr int64_t kN = static_cast<int64_t>(kLanes<C>);
  static constexpr int64_t kGroup = static_cast<int64_t>(kColumnGroup<C>);
  static constexpr int64_t kLdt = kTileKeys + kN;  // TransposeRows may write a vector beyond the tile
  static int64_t RoundUp(int64_t n) { return (n + kN - 1) / kN * kN; }
  // Rows of queries and outputs have room for whole column groups.
  static int64_t Padded(int64_t n) { return (n + kGroup - 1) / kGroup * kGroup; }

  // Keys [begin, begin + count) of the tile, counted from its first key: rows first_row... of a run. key and value are
  // these rows alone, row 0 the first.
  struct Slice {
    const KeyRun* run;
    int64_t begin, count, first_row;
    RowSource key, value;
  };

  // Padding is 0, so that it adds nothing to a dot product.
  void PackQueries() {
    std::fill(query_, query_ + rows_ * ldq_, C{0});
    WithType<C>(item_.query_dtype, [&](auto element) HWY_ATTR {
      using T = decltype(element);
      if constexpr (!IsCode<T>()) {
        for (int64_t r = 0; r < rows_; ++r) {
          const int64_t token = item_.token_begin + r / item_.group;
          const int64_t first = r % item_.group * item_.query_head_stride + token * item_.query_token_stride;
          ConvertRow(Reader<T>(item_.query + first * static_cast<int64_t>(sizeof(T)), 0), 0,
                     static_cast<size_t>(item_.head_size), C{1}, query_ + r * ldq_);
        }
      }
    });
  }

  // The queries with their columns in planes, as codes of less than 8 bits are read. Made when the first such run comes.
  template <size_t kPlaneCount>
  const C* QueriesInPlanes() {
    if constexpr (kPlaneCount == 1) {
      return query_;
    } else {
      auto& copy = plane_queries_[kPlaneCount == 4];
      if (!copy) {
        const Lanes<C> d;
        copy = hwy::AllocateAligned<C>(static_cast<size_t>(rows_ * ldq_));
        if (!copy) throw std::bad_alloc();
        for (int64_t i = 0; i < rows_ * ldq_; i += static_cast<int64_t>(kPlaneCount) * kN) {
          VecOf<C> v[kPlaneCount];
          for (size_t p = 0; p < kPlaneCount; ++p) v[p] = hn::Load(d, query_ + i + static_cast<int64_t>(p) * kN);
          ToPlanes<C>(v);
          for (size_t p = 0; p < kPlaneCount; ++p) hn::Store(v[p], d, copy.get() + i + static_cast<int64_t>(p) * kN);
        }
      }
      return copy.get();
    }
  }

  void FindSlices(int64_t key, int64_t end) {
    slice_count_ = 0;
    while (run_ > 0 && item_.runs[run_].begin > key) --run_;
    while (run_ + 1 < item_.run_count && item_.runs[run_].end <= key) ++run_;
    for (size_t i = run_; i < item_.run_count && item_.runs[i].begin < end; ++i) {
      const KeyRun& run = item_.runs[i];
      const int64_t begin = std::max(key, run.begin);
      const int64_t count = std::min(end, run.end) - begin;
      if (count > 0) {
        const int64_t first = begin - run.begin;
        slices_[slice_count_++] = {&run, begin - key, count, first, RowsFrom(run.key, first), RowsFrom(run.value, first)};
      }
    }
  }

  static RowSource RowsFrom(RowSource rows, int64_t first) {
    if (rows.payload == nullptr) rows.data = rows.Row(first);
    return rows;
  }

  // Rows that cannot be read in place become floats, in memory of their own.
  void DecodeSlices() {
    for (size_t i = 0; i < slice_count_; ++i) {
      Slice& s = slices_[i];
      DecodeRows(s, item_.head_size, ldq_, decoded_[0], s.key);
      DecodeRows(s, item_.v_head_size, ldo_, decoded_[1], s.value);
    }
  }

  static void DecodeRows(const Slice& s, int64_t width, int64_t stride, hwy::AlignedFreeUniquePtr<float[]>& buffer,
                         RowSource& rows) {
    const StoredPayload* const payload = rows.payload;
    if (payload == nullptr) return;
    if (!buffer) buffer = hwy::AllocateAligned<float>(static_cast<size_t>(kTileKeys * stride));
    if (!buffer) throw std::bad_alloc();
    float* const first = buffer.get() + s.begin * stride;
    for (int64_t r = 0; r < s.count; ++r) {
      DecodeRow(*payload, rows.batch, rows.head, s.first_row + r, 0, width, first + r * stride);
    }
    rows = RowSource();
    rows.data = reinterpret_cast<const uint8_t*>(first);
    rows.dtype = DType::kFloat;
    rows.stride_bytes = stride * static_cast<int64_t>(sizeof(float));
  }

  void CopySlices() const {
    for (size_t i = 0; i < slice_count_; ++i) {
      const Slice& s = slices_[i];
      CopyRows(s.run->key, s.first_row, s.count, item_.head_size, s.run->key_copy);
      CopyRows(s.run->value, s.first_row, s.count, item_.v_head_size, s.run->value_copy);
    }
  }

  // The first `width` keys of the tile as columns, unless few rows make stored rows cheaper.
  void PackKeys(int64_t width) {
    if (direct_) return;
    const C* rows = values_;
    int64_t stride = ldq_;
    if (slice_count_ == 1 && slices_[0].key.dtype == kComputeDType && slices_[0].key.payload == nullptr) {
      rows = reinterpret_cast<const C*>(slices_[0].key.data);
      stride = slices_[0].key.stride_bytes / static_cast<int64_t>(sizeof(C));
    } else {
      GatherRows(&Slice::key, width, item_.head_size, ldq_);
    }
    TransposeRows(rows, static_cast<size_t>(stride), static_cast<size_t>(width), static_cast<size_t>(item_.head_size),
                  keys_, static_cast<size_t>(kLdt));
  }

  // Many rows read values often: promote them once, and gather them where they lie in pieces.
  void PackValues(int64_t width) {
    packed_values_ = !direct_ && (slice_count_ != 1 || slices_[0].value.dtype != kComputeDType);
    if (packed_values_) GatherRows(&Slice::value, width, item_.v_head_size, ldo_);
  }

  // One side of the tile's first `width` keys as rows of the compute type, in values_.
  void GatherRows(RowSource Slice::*side, int64_t width, int64_t columns, int64_t stride) {
    for (size_t i = 0; i < slice_count_ && slices_[i].begin < width; ++i) {
      const Slice& s = slices_[i];
      const RowSource& source = s.*side;
      WithType<C>(source.dtype, [&](auto element) HWY_ATTR {
        const Reader<decltype(element)> rows(source, 0);
        for (int64_t r = 0; r < s.count; ++r) {
          ConvertRow(rows, static_cast<size_t>(r), static_cast<size_t>(columns), static_cast<C>(source.scale),
                     values_ + (s.begin + r) * stride);
        }
      });
    }
  }

  void StreamTile(int64_t key, int64_t end) {
    DecodeSlices();
    packed_ = false;
    for (int64_t r = 0; r < rows_; r += kChunkRows) {
      StreamChunk(r, std::min<int64_t>(kChunkRows, rows_ - r), key, end);
    }
  }

  // Rows [row, row + count) against keys [key, end) of the tile.
  void StreamChunk(int64_t row, int64_t count, int64_t key, int64_t end) {
    const int64_t first = item_.token_begin + row / item_.group;
    const int64_t last = item_.token_begin + (row + count - 1) / item_.group;
    const int64_t high = item_.visibility.High(last);
    if (high <= key || item_.visibility.Low(first) >= end) return;
    const int64_t width = std::min(end, high) - key;
    const bool all_visible = item_.mask.data == nullptr && item_.visibility.Low(last) <= key &&
                             item_.visibility.High(first) >= key + width && width % kN == 0;
    if (!all_visible && !FindBias(row, count, key, width)) return;
    if (!packed_) {
      packed_ = true;
      PackKeys(end - key);
      PackValues(end - key);
    }
    DotProducts(row, count, width);
    HWY_ALIGN C alpha[kChunkRows];
    for (int64_t i = 0; i < count; ++i) {
      C* const s = scores_ + i * kTileKeys;
      alpha[i] = all_visible ? WeighAll(row + i, width, s) : WeighVisible(row + i, RoundUp(width), row_bias_[i], s);
    }
    AddValues(row, count, width, alpha, !all_visible);
  }

  // The bias of the chunk's rows; null for a row that sees no key here. False where none sees any: masks that are
  // written out are often causal, and half their tiles need no work.
  bool FindBias(int64_t row, int64_t count, int64_t key, int64_t width) {
    bool any = false;
    for (int64_t i = 0; i < count; ++i) {
      const bool same_as_before = i > 0 && item_.mask.head_stride == 0 && (row + i) % item_.group != 0;
      if (same_as_before) {
        row_bias_[i] = row_bias_[i - 1];
        continue;
      }
      C* const bias = bias_ + i * kTileKeys;
      row_bias_[i] = BiasRow(item_, row + i, key, width, bias) ? bias : nullptr;
      any |= row_bias_[i] != nullptr;
    }
    return any;
  }

  // scores_ = q . k for rows [row, row + count) and the tile's first `width` keys.
  void DotProducts(int64_t row, int64_t count, int64_t width) {
    if (!direct_) {
      const Reader<C> keys(keys_, kLdt * static_cast<int64_t>(sizeof(C)));
      AccumulateRows<C>(query_ + row * ldq_, static_cast<size_t>(ldq_), static_cast<size_t>(count), keys,
                        static_cast<size_t>(RoundUp(width)), static_cast<size_t>(item_.head_size), nullptr, nullptr,
                        scores_, kTileKeys);
      return;
    }
    for (size_t i = 0; i < slice_count_ && slices_[i].begin < width; ++i) {
      const Slice& s = slices_[i];
      const int64_t keys = std::min(s.count, width - s.begin);
      WithType<C>(s.key.dtype, [&](auto element) HWY_ATTR {
        using T = decltype(element);
        DotRows(QueriesInPlanes<kPlanes<T>>() + row * ldq_, static_cast<size_t>(ldq_), static_cast<size_t>(count),
                Reader<T>(s.key, 0), static_cast<size_t>(keys), static_cast<size_t>(item_.head_size),
                scores_ + s.begin, kTileKeys);
      });
      if (s.key.scale != 1.0f) MultiplyScores(count, s.begin, keys, s.key.scale);
    }
  }

  // scores_[0, count) x [begin, begin + keys) times `scale`.
  void MultiplyScores(int64_t count, int64_t begin, int64_t keys, float scale) {
    for (int64_t i = 0; i < count; ++i) {
      C* const s = scores_ + i * kTileKeys + begin;
      for (int64_t k = 0; k < keys; ++k) s[k] *= static_cast<C>(scale);
    }
  }

  // Dot products of one row to softmax weights; returns the factor of its old output. All keys take part.
  C WeighAll(int64_t row, int64_t width, C* HWY_RESTRICT s) {
    const Lanes<C> d;
    saw_keys_[row] = 1;
    for (int64_t i = 0; i < width; i += kN) hn::Store(ScaledScore<C>(hn::Load(d, s + i), scale_, softcap_), d, s + i);
    return UpdateRow(s, static_cast<size_t>(width), RowState<C>{max_ + row, sums_ + row * kN});
  }

  // The same where some keys are hidden or biased. bias null: no key takes part.
  C WeighVisible(int64_t row, int64_t padded, const C* bias, C* HWY_RESTRICT s) {
    const Lanes<C> d;
    if (bias == nullptr) {
      std::fill(s, s + padded, C{0});
      return C{1};
    }
    saw_keys_[row] = 1;
    for (int64_t i = 0; i < padded; i += kN) {
      const VecOf<C> score = ScaledScore<C>(hn::Load(d, s + i), scale_, softcap_);
      hn::Store(BiasedScore<C>(score, hn::Load(d, bias + i), item_.mask.sum_in_float), d, s + i);
    }
    return UpdateRow(s, static_cast<size_t>(padded), RowState<C>{max_ + row, sums_ + row * kN});
  }

  // output = output * alpha + weights . values.
  void AddValues(int64_t row, int64_t count, int64_t width, const C* alpha, bool some_hidden) {
    if (packed_values_) {
      AddRows(Reader<C>(values_, ldo_ * static_cast<int64_t>(sizeof(C))), row, count, 0, width, alpha, some_hidden);
      return;
    }
    static constexpr auto kOnes = [] {
      std::array<C, kChunkRows> ones{};
      for (C& one : ones) one = C{1};
      return ones;
    }();
    for (size_t i = 0; i < slice_count_ && slices_[i].begin < width; ++i) {
      const Slice& s = slices_[i];
      const int64_t keys = std::min(s.count, width - s.begin);
      if (s.value.scale != 1.0f) MultiplyScores(count, s.begin, keys, s.value.scale);
      WithType<C>(s.value.dtype, [&](auto element) HWY_ATTR {
        AddRows(Reader<decltype(element)>(s.value, 0), row, count, s.begin, keys,
                i == 0 ? alpha : kOnes.data(), some_hidden);
      });
    }
  }

  // `values`: rows of the tile's keys [begin, begin + depth).
  template <typename T>
  HWY_INLINE void AddRows(const Reader<T>& values, int64_t row, int64_t count, int64_t begin, int64_t depth,
                          const C* alpha, bool some_hidden) {
    const C* weights = scores_ + begin;
    const auto careful = [&](size_t r, size_t rows, size_t column, size_t columns) HWY_ATTR {
      for (size_t i = r; i < r + rows; ++i) {
        const C* const bias = row_bias_[i] == nullptr ? nullptr : row_bias_[i] + begin;
        AddVisible(values, row + static_cast<int64_t>(i), depth, weights + i * kTileKeys, bias, alpha[i], column, columns);
      }
    };
    using Careful = decltype(careful);
    const OnReject reject{[](const void* context, size_t r, size_t rows, size_t column, size_t columns) {
                            (*static_cast<const Careful*>(context))(r, rows, column, columns);
                          },
                          &careful};
    AccumulateRows(weights, kTileKeys, static_cast<size_t>(count), values, static_cast<size_t>(item_.v_head_size),
                   static_cast<size_t>(depth), alpha, some_hidden ? &reject : nullptr, output_ + row * ldo_,
                   static_cast<size_t>(ldo_));
  }

  // The columns of one register block again, where a sum was not finite: a hidden key has weight 0, and 0 * NaN must
  // not count. Slow and rare.
  template <typename T>
  HWY_NOINLINE void AddVisible(const Reader<T>& values, int64_t row, int64_t depth, const C* weights, const C* bias,
                               C alpha, size_t first_column, size_t block_columns) {
    if (bias == nullptr) depth = 0;
    const Lanes<C> d;
    constexpr size_t P = kPlanes<T>;
    constexpr size_t kStep = P * kLanes<C>;
    const size_t columns = static_cast<size_t>(item_.v_head_size);
    const size_t last_column = std::min(first_column + block_columns, columns);
    for (size_t c = first_column; c < last_column; c += kStep) {
      C* const output = output_ + row * ldo_ + c;
      VecOf<C> sum[P];
      for (size_t p = 0; p < P; ++p) sum[p] = hn::Mul(hn::LoadU(d, output + p * kLanes<C>), hn::Set(d, alpha));
      ToPlanes<C>(sum);
      for (int64_t k = 0; k < depth; ++k) {
        if (bias[k] == kMinusInfinity<C>) continue;
        VecOf<C> v[P];
        values.template LoadN<C>(values.Row(static_cast<size_t>(k)), c, std::min(kStep, columns - c), v);
        for (size_t p = 0; p < P; ++p) sum[p] = hn::MulAdd(hn::Set(d, weights[k]), v[p], sum[p]);
      }
      FromPlanes<C>(sum);
      for (size_t p = 0; p < P; ++p) hn::StoreU(sum[p], d, output + p * kLanes<C>);
    }
  }

  C RowSum(int64_t r) const { return hn::ReduceSum(Lanes<C>(), hn::Load(Lanes<C>(), sums_ + r * kN)); }
  C RowDivisor(int64_t r) const { return Divisor(max_[r], RowSum(r), saw_keys_[r] != 0); }

  void WriteScoreRow(int64_t row, int64_t key, int64_t width, C* HWY_RESTRICT s) {
    const Lanes<C> d;
    const ScoreOutput& out = item_.scores;
    const bool probabilities = out.mode == 3;
    const C subtrahend = max_[row];
    const C divisor = RowDivisor(row);
    if (out.mode >= 2) BiasRow(item_, row, key, width, bias_);
    const int64_t element = row % item_.group * out.head_stride +
                            (item_.token_begin + row / item_.group) * out.token_stride + key;
    uint8_t* to = out.data + element * static_cast<int64_t>(BytesOf(item_.query_dtype));
    for (int64_t i = 0; i < width; i += kN) {
      VecOf<C> v = ScaledScore<C>(hn::Load(d, s + i), scale_, out.mode == 0 ? C{0} : softcap_);
      if (out.mode >= 2) {
        const VecOf<C> bias = hn::Load(d, bias_ + i);
        v = BiasedScore<C>(v, bias, item_.mask.sum_in_float);
        if (probabilities) {
          const VecOf<C> p = hn::Div(ExpOfNonPositive(hn::Sub(v, hn::Set(d, subtrahend))), hn::Set(d, divisor));
          v = hn::IfThenZeroElse(hn::Eq(bias, hn::Set(d, kMinusInfinity<C>)), p);
        }
      }
      StoreAs<C>(v, item_.query_dtype, to + i * static_cast<int64_t>(BytesOf(item_.query_dtype)),
                 static_cast<size_t>(std::min(kN, width - i)));
    }
  }

  static constexpr DType kComputeDType = sizeof(C) == 8 ? DType::kDouble : DType::kFloat;

  const AttentionItem& item_;
  const int64_t rows_, ldq_, ldo_;
  const bool direct_;
  const C scale_, softcap_;
  hwy::AlignedFreeUniquePtr<C[]> scratch_;
  hwy::AlignedFreeUniquePtr<uint8_t[]> saw_keys_;
  C* query_ = nullptr;   // rows x ldq, zero-padded
  C* output_ = nullptr;  // rows x ldo
  C* sums_ = nullptr;    // rows x lanes
  C* max_ = nullptr;     // rows
  C* scores_ = nullptr;  // chunk x tile: dot products, then weights
  C* bias_ = nullptr;    // chunk x tile
  C* keys_ = nullptr;    // head_size x kLdt: the tile's keys as columns
  C* values_ = nullptr;  // tile x max(ldq, ldo): rows of the tile in the compute type
  hwy::AlignedFreeUniquePtr<C[]> plane_queries_[2];  // of 2 and 4 planes
  hwy::AlignedFreeUniquePtr<float[]> decoded_[2];    // tile x ldq, tile x ldo
  const C* row_bias_[kChunkRows];
  bool packed_ = false, packed_values_ = false;
  size_t run_ = 0, slice_count_ = 0;
  Slice slices_[kTileKeys];
};

template <typename C>
void RunItem(const AttentionItem& item) {
  ItemRun<C> run(item);
  run.Stream();
  if (item.output != nullptr) {
    run.WriteOutput();
  } else {
    run.WritePartial();
  }
  if (item.scores.data != nullptr) run.WriteScores();
}

template <typename C>
int64_t PaddedVHeadSize(int64_t v_head_size) {
  constexpr int64_t kGroup = static_cast<int64_t>(kColumnGroup<C>);
  return (v_head_size + kGroup - 1) / kGroup * kGroup;
}

// Weighs each state by exp(its max - the common max).
template <typename C>
void MergePartials(const AttentionItem& item, const PartialState* partials, size_t count) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  const int64_t ldo = PaddedVHeadSize<C>(item.v_head_size);
  hwy::AlignedFreeUniquePtr<C[]> row = hwy::AllocateAligned<C>(static_cast<size_t>(ldo) + N);
  if (!row) throw std::bad_alloc();
  for (int64_t r = 0; r < item.rows(); ++r) {
    C max = kMinusInfinity<C>;
    bool saw_keys = false;
    for (size_t p = 0; p < count; ++p) {
      max = std::max(max, static_cast<const C*>(partials[p].max)[r]);
      saw_keys |= static_cast<const C*>(partials[p].sum)[r] != C{0};
    }
    C sum{0};
    std::fill(row.get(), row.get() + ldo, C{0});
    for (size_t p = 0; p < count; ++p) {
      const C weight = ExpScalar<C>(static_cast<const C*>(partials[p].max)[r] - Subtrahend(max));
      sum += weight * static_cast<const C*>(partials[p].sum)[r];
      const C* from = static_cast<const C*>(partials[p].output) + r * ldo;
      for (int64_t c = 0; c < ldo; c += static_cast<int64_t>(N)) {
        hn::Store(hn::MulAdd(hn::LoadU(d, from + c), hn::Set(d, weight), hn::Load(d, row.get() + c)), d, row.get() + c);
      }
    }
    const int64_t element = r % item.group * item.output_head_stride +
                            (item.token_begin + r / item.group) * item.output_token_stride;
    WriteRow(row.get(), Divisor(max, sum, saw_keys), static_cast<size_t>(item.v_head_size), item.query_dtype,
             item.output + element * static_cast<int64_t>(BytesOf(item.query_dtype)));
  }
}

template <typename C>
const AttentionKernels* KernelTable() {
  static constexpr AttentionKernels kTable{RunItem<C>, MergePartials<C>, PaddedVHeadSize<C>};
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
