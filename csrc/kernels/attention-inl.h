// The streaming attention kernel: tiles of keys through an online softmax, no S x T buffer. Compiled once per target
// and compute type. What it needs beside inputs and outputs: a block of query rows and their output, and one tile.
#if defined(ONNX_AI_RT_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_ATTENTION_INL_H_
#undef ONNX_AI_RT_ATTENTION_INL_H_
#else
#define ONNX_AI_RT_ATTENTION_INL_H_
#endif

#include <memory>

#include "kernels/engine_choice-inl.h"
#include "kernels/softmax_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

template <typename C>
class ItemRun {
 public:
  ItemRun(const AttentionItem& item, Scratch& scratch)
      : item_(item),
        row_count_(item.rows()),
        ldo_(RoundUpToGroup<C>(item.v_head_size)),
        tile_(item, scratch),
        rows_{item, scratch},
        softmax_(rows_) {
    rows_.ldo = ldo_;
    rows_.output = scratch.Take<C>(row_count_ * ldo_);
    rows_.scores = scratch.Take<C>(kMostChunkRows * kTileKeys);
    bias_ = scratch.Take<C>(kMostChunkRows * kTileKeys);
    std::fill(rows_.output, rows_.output + row_count_ * ldo_, C{0});
    engine_ = MakeEngine<C>(rows_, tile_);
    chunk_rows_ = engine_->ChunkRows();
  }

  void Stream() {
    const int64_t last = item_.token_end - 1;
    const int64_t low = item_.visibility.Low(item_.token_begin);
    int64_t high = item_.visibility.High(last);
    if (item_.mask.data != nullptr && item_.mask.key_stride != 0) high = std::min(high, item_.mask.key_count);
    for (int64_t key = item_.key_begin; key < item_.key_end; key += tile_.keys()) {
      const int64_t end = std::min(key + tile_.keys(), item_.key_end);
      tile_.MoveTo(key, end);
      tile_.Copy();
      if (key < high && end > low) StreamTile(key, std::min(end, high));
    }
  }

  void WriteOutput() {
    for (int64_t r = 0; r < row_count_; ++r) {
      const int64_t element = r % item_.group * item_.output_head_stride +
                              (item_.token_begin + r / item_.group) * item_.output_token_stride;
      WriteRow(rows_.output + r * ldo_, softmax_.Divisor(r), static_cast<size_t>(item_.v_head_size), item_.query_dtype,
               item_.output + element * static_cast<int64_t>(BytesOf(item_.query_dtype)));
    }
  }

  // A row that saw only scores of -inf keeps a sum of 1, which tells it from one that saw no key.
  void WritePartial() {
    C* const output = static_cast<C*>(item_.partial.output);
    C* const max = static_cast<C*>(item_.partial.max);
    C* const sum = static_cast<C*>(item_.partial.sum);
    std::copy(rows_.output, rows_.output + row_count_ * ldo_, output);
    for (int64_t r = 0; r < row_count_; ++r) {
      max[r] = softmax_.Max(r);
      sum[r] = max[r] == kMinusInfinity<C> ? C(softmax_.SawKeys(r)) : softmax_.Sum(r);
    }
  }

  // qk_matmul_output, all keys: a second pass over the tiles, after Stream().
  void WriteScores() {
    for (int64_t key = 0; key < item_.scores.kv_len; key += tile_.keys()) {
      const int64_t end = std::min(key + tile_.keys(), item_.scores.kv_len);
      tile_.MoveTo(key, end);
      engine_->Pack(end - key, false);
      for (int64_t r = 0; r < row_count_; r += chunk_rows_) {
        const int64_t count = std::min(chunk_rows_, row_count_ - r);
        engine_->Dots(r, count, end - key, RowFetch());
        for (int64_t i = 0; i < count; ++i) WriteScoreRow(r + i, key, end - key, rows_.scores + i * kTileKeys);
      }
    }
  }

 private:
  static constexpr int64_t kN = static_cast<int64_t>(kLanes<C>);

  void StreamTile(int64_t key, int64_t end) {
    tile_.Decode();
    packed_ = false;
    for (int64_t r = 0; r < row_count_; r += chunk_rows_) {
      StreamChunk(r, std::min(chunk_rows_, row_count_ - r), key, end);
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
    const ChunkBias bias = all_visible ? ChunkBias{true, false} : FindBias(row, count, key, width);
    if (!bias.sees_keys) return;
    if (!packed_) {
      packed_ = true;
      engine_->Pack(end - key, true);
    }
    engine_->Dots(row, count, width, MaskFetch(row + count, key));
    HWY_ALIGN C alpha[SoftmaxRows<C>::kMostRows];
    softmax_.Weigh(row, count, RoundUpToLanes<C>(width), all_visible, *engine_, alpha);
    engine_->AddValues(row, count, width, alpha, bias.hides_keys);
  }

  struct ChunkBias {
    bool sees_keys, hides_keys;  // any of its rows
  };

  // The bias of the chunk's rows; null for a row that sees no key here. Where no row does, a tile needs no work: masks
  // that are written out are often causal.
  ChunkBias FindBias(int64_t row, int64_t count, int64_t key, int64_t width) {
    ChunkBias chunk{false, false};
    for (int64_t i = 0; i < count; ++i) {
      const bool same_as_before = i > 0 && item_.mask.head_stride == 0 && (row + i) % item_.group != 0;
      if (same_as_before) {
        rows_.row_bias[i] = rows_.row_bias[i - 1];
        rows_.is_tame[i] = rows_.is_tame[i - 1];
        continue;
      }
      const RowBias<C> bias = BiasRow(item_, row + i, key, width, bias_ + i * kTileKeys);
      rows_.row_bias[i] = bias.sees_keys ? bias.values : nullptr;
      rows_.is_tame[i] = bias.is_tame;
      chunk.sees_keys |= bias.sees_keys;
      chunk.hides_keys |= bias.hides_keys;
    }
    return chunk;
  }

  // The mask of the chunk from `row` on, behind the last one that of the next tile's first chunk: its rows are far from
  // one another, where no prefetcher of the CPU finds them. None where each head of the group has its own.
  RowFetch MaskFetch(int64_t row, int64_t key) const {
    const MaskRows& mask = item_.mask;
    if (mask.data == nullptr || mask.key_stride == 0 || (mask.head_stride != 0 && item_.group != 1)) return RowFetch();
    if (row >= row_count_) {
      row = 0;
      key += tile_.keys();
    }
    if (key >= mask.key_count) return RowFetch();
    const int64_t bytes = static_cast<int64_t>(BytesOf(mask.dtype));
    const int64_t rows = std::min(chunk_rows_, row_count_ - row);
    return RowFetch(MaskAt(item_, row, key), (rows + item_.group - 1) / item_.group, tile_.keys() * bytes,
                    mask.token_stride * bytes);
  }

  void WriteScoreRow(int64_t row, int64_t key, int64_t width, C* HWY_RESTRICT s) {
    const Lanes<C> d;
    const ScoreOutput& out = item_.scores;
    const bool probabilities = out.mode == 3;
    const C scale = static_cast<C>(item_.scale);
    const C softcap = out.mode == 0 ? C{0} : static_cast<C>(item_.softcap);
    const C subtrahend = Subtrahend(softmax_.Max(row));
    const C divisor = softmax_.Divisor(row);
    const C* const row_bias = out.mode >= 2 ? BiasRow(item_, row, key, width, bias_).values : nullptr;
    const int64_t element =
        row % item_.group * out.head_stride + (item_.token_begin + row / item_.group) * out.token_stride + key;
    uint8_t* to = out.data + element * static_cast<int64_t>(BytesOf(item_.query_dtype));
    for (int64_t i = 0; i < width; i += kN) {
      VecOf<C> v = ScaledScore<C>(hn::Load(d, s + i), scale, softcap);
      if (out.mode >= 2) {
        const VecOf<C> bias = hn::LoadU(d, row_bias + i);
        v = BiasedScore<C>(v, bias, item_.mask.sum_in_float);
        if (probabilities) {
          v = hn::Div(ExpOfNonPositive(hn::Sub(v, hn::Set(d, subtrahend))), hn::Set(d, divisor));
        }
      }
      StoreAs<C>(v, item_.query_dtype, to + i * static_cast<int64_t>(BytesOf(item_.query_dtype)),
                 static_cast<size_t>(std::min(kN, width - i)));
    }
  }

  const AttentionItem& item_;
  const int64_t row_count_, ldo_;
  KeyTile tile_;
  RowBuffers<C> rows_;
  SoftmaxRows<C> softmax_;
  C* bias_ = nullptr;  // chunk x tile
  std::unique_ptr<TileEngine<C>> engine_;
  int64_t chunk_rows_ = 0;
  bool packed_ = false;
};

template <typename C>
void RunItem(const AttentionItem& item) {
  Scratch& scratch = Scratch::OfThread();
  scratch.Reset();
  ItemRun<C> run(item, scratch);
  run.Stream();
  if (item.output != nullptr) {
    run.WriteOutput();
  } else {
    run.WritePartial();
  }
  if (item.scores.data != nullptr) run.WriteScores();
}

// Weighs each state by exp(its max - the common max).
template <typename C>
void MergePartials(const AttentionItem& item, const PartialState* partials, size_t count) {
  const Lanes<C> d;
  constexpr size_t N = kLanes<C>;
  const int64_t ldo = RoundUpToGroup<C>(item.v_head_size);
  Scratch& scratch = Scratch::OfThread();
  scratch.Reset();
  C* const row = scratch.Take<C>(ldo);
  for (int64_t r = 0; r < item.rows(); ++r) {
    C max = kMinusInfinity<C>;
    bool saw_keys = false;
    for (size_t p = 0; p < count; ++p) {
      max = std::max(max, static_cast<const C*>(partials[p].max)[r]);
      saw_keys |= static_cast<const C*>(partials[p].sum)[r] != C{0};
    }
    C sum{0};
    std::fill(row, row + ldo, C{0});
    for (size_t p = 0; p < count; ++p) {
      const C weight = ExpScalar<C>(static_cast<const C*>(partials[p].max)[r] - Subtrahend(max));
      sum += weight * static_cast<const C*>(partials[p].sum)[r];
      const C* from = static_cast<const C*>(partials[p].output) + r * ldo;
      for (int64_t c = 0; c < ldo; c += static_cast<int64_t>(N)) {
        hn::Store(hn::MulAdd(hn::LoadU(d, from + c), hn::Set(d, weight), hn::Load(d, row + c)), d, row + c);
      }
    }
    const int64_t element =
        r % item.group * item.output_head_stride + (item.token_begin + r / item.group) * item.output_token_stride;
    WriteRow(row, Divisor(max, sum, saw_keys), static_cast<size_t>(item.v_head_size), item.query_dtype,
             item.output + element * static_cast<int64_t>(BytesOf(item.query_dtype)));
  }
}

template <typename C>
const AttentionKernels* KernelTable() {
  static constexpr AttentionKernels kTable{RunItem<C>, MergePartials<C>, RoundUpToGroup<C>,
                                           sizeof(C) == 4 && kMultipliesBFloat16};
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
