#include "kernels/attention_driver.h"

#include <algorithm>
#include <new>

#include "hwy/aligned_allocator.h"
#include "kernels/cpu_features.h"

namespace onnx_ai_rt {
namespace {

// Query rows and their output of one item should stay in the second-level cache.
constexpr int64_t kBlockBytes = 256 << 10;
constexpr int64_t kMinBlockRows = 64;
constexpr int64_t kMaxBlockRows = 512;
// Enough items to keep many threads busy.
constexpr int64_t kWantedItems = 32;
// Keys of a piece at least, and rows of an item at most, where merging pieces costs little beside them.
constexpr int64_t kMinPieceKeys = 512;
constexpr int64_t kMaxSplitRows = 128;
// Multiply-adds below which waking threads costs more than it saves.
constexpr double kSerialWork = 1 << 17;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

class TaskRun {
 public:
  explicit TaskRun(const AttentionTask& task)
      : task_(task),
        sizes_(task.sizes),
        kernels_(task.compute_in_double ? AttentionKernelsF64() : AttentionKernelsF32()),
        blocks_(task.split.query_block == 0 ? 0 : CeilDiv(sizes_.q_len, task.split.query_block)) {}

  void Run(Executor& executor) {
    const int64_t pairs = sizes_.pairs();
    const int64_t pieces = task_.split.key_pieces;
    if (blocks_ == 0 || pairs == 0) return;
    if (pieces > 1) AllocatePartials();
    executor.ParallelFor(static_cast<size_t>(pairs * blocks_ * pieces), [&](size_t i) {
      // Later blocks see more keys when causal: start with them.
      const int64_t index = static_cast<int64_t>(i);
      RunItem(index % pairs, blocks_ - 1 - index / pairs / pieces, index / pairs % pieces);
    });
    if (pieces > 1) executor.ParallelFor(static_cast<size_t>(pairs), [&](size_t i) { Merge(static_cast<int64_t>(i)); });
  }

 private:
  AttentionItem ItemOf(int64_t pair, int64_t block) const {
    const int64_t b = pair / sizes_.kv_heads, h = pair % sizes_.kv_heads * sizes_.group();
    const int64_t bytes = static_cast<int64_t>(BytesOf(task_.query_dtype));
    AttentionItem item;
    item.head_size = sizes_.head_size;
    item.v_head_size = sizes_.v_head_size;
    item.group = sizes_.group();
    item.token_begin = block * task_.split.query_block;
    item.token_end = std::min(sizes_.q_len, item.token_begin + task_.split.query_block);
    item.scale = task_.scale;
    item.softcap = task_.softcap;
    item.tiles = tiles_;
    item.visibility = task_.VisibilityOf(b);
    item.mask = task_.MaskOf(b, h);
    item.scores = task_.ScoresOf(b, h);
    item.query_dtype = task_.query_dtype;
    item.query = task_.query + (b * task_.query_layout.batch + h * task_.query_layout.head) * bytes;
    item.query_head_stride = task_.query_layout.head;
    item.query_token_stride = task_.query_layout.token;
    item.output = task_.output + (b * task_.output_layout.batch + h * task_.output_layout.head) * bytes;
    item.output_head_stride = task_.output_layout.head;
    item.output_token_stride = task_.output_layout.token;
    return item;
  }

  void RunItem(int64_t pair, int64_t block, int64_t piece) const {
    AttentionItem item = ItemOf(pair, block);
    item.key_end = sizes_.kv_len;
    if (!task_.visit_all_keys && item.scores.data == nullptr) {
      item.key_begin = std::min(item.visibility.Low(item.token_begin), sizes_.kv_len) / kTileKeys * kTileKeys;
      item.key_end = std::min(item.visibility.High(item.token_end - 1), sizes_.kv_len);
    }
    if (task_.split.key_pieces > 1) {
      const int64_t begin = item.key_begin, end = item.key_end;
      const int64_t tiles = std::max<int64_t>(0, CeilDiv(end - begin, kTileKeys));
      item.key_begin = begin + tiles * piece / task_.split.key_pieces * kTileKeys;
      item.key_end = std::min(end, begin + tiles * (piece + 1) / task_.split.key_pieces * kTileKeys);
      item.output = nullptr;
      item.partial = PartialOf(pair, piece);
    }
    std::vector<KeyRun> runs;
    if (item.key_begin < item.key_end) task_.RunsOf(pair, item.key_begin, item.key_end, runs);
    item.runs = runs.data();
    item.run_count = runs.size();
    kernels_.run_item(item);
  }

  void Merge(int64_t pair) const {
    std::vector<PartialState> partials;
    for (int64_t p = 0; p < task_.split.key_pieces; ++p) partials.push_back(PartialOf(pair, p));
    kernels_.merge(ItemOf(pair, 0), partials.data(), partials.size());
  }

  // A piece's output rows, maxima and sums lie behind one another.
  void AllocatePartials() {
    rows_ = sizes_.q_len * sizes_.group();
    element_bytes_ = task_.compute_in_double ? 8 : 4;
    padded_ = kernels_.padded_v_head_size(sizes_.v_head_size);
    partials_ = hwy::AllocateAligned<uint8_t>(
        static_cast<size_t>(sizes_.pairs() * task_.split.key_pieces * rows_ * (padded_ + 2) * element_bytes_));
    if (!partials_) throw std::bad_alloc();
  }

  PartialState PartialOf(int64_t pair, int64_t piece) const {
    uint8_t* start = partials_.get() + (pair * task_.split.key_pieces + piece) * rows_ * (padded_ + 2) * element_bytes_;
    return {start, start + rows_ * padded_ * element_bytes_, start + rows_ * (padded_ + 1) * element_bytes_};
  }

  const AttentionTask& task_;
  const AttentionSizes& sizes_;
  const AttentionKernels& kernels_;
  const int64_t blocks_;
  const TileUnit tiles_ = ChosenTiles();
  int64_t rows_ = 0, padded_ = 0, element_bytes_ = 0;
  hwy::AlignedFreeUniquePtr<uint8_t[]> partials_;
};

}  // namespace

AttentionSplit ChooseSplit(const AttentionSizes& sizes, bool compute_in_double, bool may_split_keys) {
  AttentionSplit split;
  const int64_t pairs = sizes.pairs();
  if (pairs == 0 || sizes.q_len == 0) return split;
  const int64_t group = sizes.group();
  const int64_t row_bytes = (sizes.head_size + sizes.v_head_size + 1) * (compute_in_double ? 8 : 4);
  const int64_t rows = std::clamp(kBlockBytes / row_bytes, kMinBlockRows, kMaxBlockRows);
  const int64_t even = CeilDiv(sizes.q_len, CeilDiv(kWantedItems, pairs));
  const int64_t tokens = std::min(std::max<int64_t>(1, rows / group), std::max(even, CeilDiv(kMinBlockRows, group)));
  const int64_t blocks = CeilDiv(sizes.q_len, tokens);
  split.query_block = CeilDiv(sizes.q_len, blocks);
  if (blocks == 1 && may_split_keys && sizes.q_len * group <= kMaxSplitRows) {
    split.key_pieces = std::clamp<int64_t>(sizes.kv_len / kMinPieceKeys, 1, CeilDiv(kWantedItems, pairs));
  }
  return split;
}

std::string PathOf(bool direct, bool compute_in_double, DType query, int data_parts) {
  if (compute_in_double) return direct ? "direct_f64" : "tiled_f64";
  if (direct) return "direct_f32";
  const int parts = MostParts(BFloat16Parts(query), data_parts);
  if (parts != 0 && ChosenTiles() != TileUnit::kNone) {
    return query == DType::kHalf ? "tiled_amx_f16" : "tiled_amx_bf16";
  }
  return parts == 1 && AttentionKernelsF32().multiplies_bfloat16 ? "tiled_bf16" : "tiled_f32";
}

void RunTask(const AttentionTask& task, Executor& executor) {
  const AttentionSizes& s = task.sizes;
  const double work = static_cast<double>(s.batch) * static_cast<double>(s.q_heads) * static_cast<double>(s.q_len) *
                      static_cast<double>(s.kv_len) * static_cast<double>(s.head_size + s.v_head_size);
  TaskRun run(task);
  if (work < kSerialWork) {
    SerialExecutor serial;
    run.Run(serial);
  } else {
    run.Run(executor);
  }
}

}  // namespace onnx_ai_rt
