// Cuts an AttentionPlan into items and runs them on the executor.
#include "kernels/attention.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "hwy/aligned_allocator.h"
#include "kernels/attention_item.h"
#include "kernels/error.h"

namespace onnx_ai_rt {
namespace {

// Multiply-adds below which waking threads costs more than it saves.
constexpr double kSerialWork = 1 << 17;

// Strides, in elements, of (batch, head, token) of Q, K, V or Y of rank 3 or 4.
struct Layout {
  int64_t batch, head, token;
};

Layout LayoutOf(bool rank3, int64_t heads, int64_t length, int64_t width) {
  if (rank3) return {length * heads * width, width, heads * width};
  return {heads * length * width, length * width, width};
}

class AttentionRun {
 public:
  AttentionRun(const AttentionPlan& plan, const AttentionInputs& inputs, const AttentionOutputs& outputs)
      : plan_(plan), in_(inputs), out_(outputs), group_(plan.q_heads / plan.kv_heads) {
    query_ = LayoutOf(plan.rank3, plan.q_heads, plan.q_len, plan.head_size);
    key_ = LayoutOf(plan.rank3, plan.kv_heads, plan.new_len, plan.head_size);
    value_ = LayoutOf(plan.rank3, plan.kv_heads, plan.new_len, plan.v_head_size);
    output_ = LayoutOf(plan.rank3, plan.q_heads, plan.q_len, plan.v_head_size);
    blocks_ = plan.query_block == 0 ? 0 : (plan.q_len + plan.query_block - 1) / plan.query_block;
  }

  // Each value in 0..T, before anything is written.
  void CheckNonpad() const {
    if (!in_.nonpad_kv_seqlen.present) return;
    for (int64_t b = 0; b < plan_.batch; ++b) {
      const int64_t length = Nonpad(b);
      if (length < 0 || length > plan_.kv_len) {
        Fail(plan_.op_name, ": input nonpad_kv_seqlen: expected values in 0..", plan_.kv_len, ", got ", length,
             " for batch entry ", b);
      }
    }
  }

  void Run(Executor& executor) {
    const int64_t pairs = plan_.batch * plan_.kv_heads;
    // With one block of queries each key tile is read by one item, which copies it to present on the way.
    const bool copy_first = blocks_ != 1 && (out_.present_key != nullptr || out_.present_value != nullptr);
    if (copy_first) {
      executor.ParallelFor(static_cast<size_t>(pairs), [&](size_t i) { CopyPresent(static_cast<int64_t>(i)); });
    }
    if (blocks_ == 0 || pairs == 0) return;
    if (plan_.key_pieces > 1) AllocatePartials(pairs);
    const int64_t per_pair = blocks_ * plan_.key_pieces;
    executor.ParallelFor(static_cast<size_t>(pairs * per_pair), [&](size_t i) {
      // Later blocks see more keys when causal: start with them.
      const int64_t index = static_cast<int64_t>(i);
      RunOne(index % pairs, blocks_ - 1 - index / pairs / plan_.key_pieces, index / pairs % plan_.key_pieces);
    });
    if (plan_.key_pieces > 1) {
      executor.ParallelFor(static_cast<size_t>(pairs), [&](size_t i) { Merge(static_cast<int64_t>(i)); });
    }
  }

 private:
  struct Runs {
    KeyRun run[2];
  };

  const AttentionKernels& kernels() const {
    return plan_.compute_in_double ? AttentionKernelsF64() : AttentionKernelsF32();
  }

  int64_t Nonpad(int64_t b) const {
    int64_t length;
    std::memcpy(&length, static_cast<const uint8_t*>(in_.nonpad_kv_seqlen.data) + b * 8, sizeof(length));
    return length;
  }

  static RowSource Rows(const TensorView& view, int64_t first_element, int64_t stride) {
    const int64_t bytes = static_cast<int64_t>(BytesOf(view.dtype));
    return {static_cast<const uint8_t*>(view.data) + first_element * bytes, view.dtype, stride * bytes};
  }

  // Past keys, then new keys, of one pair of batch entry and head.
  Runs RunsOf(int64_t pair) const {
    const int64_t b = pair / plan_.kv_heads, h = pair % plan_.kv_heads;
    const int64_t past = plan_.past_len;
    Runs runs;
    if (past != 0) {
      runs.run[0].key = Rows(in_.past_key, pair * past * plan_.head_size, plan_.head_size);
      runs.run[0].value = Rows(in_.past_value, pair * past * plan_.v_head_size, plan_.v_head_size);
    }
    runs.run[0].end = past;
    runs.run[1].begin = past;
    runs.run[1].end = plan_.kv_len;
    runs.run[1].key = Rows(in_.key, b * key_.batch + h * key_.head, key_.token);
    runs.run[1].value = Rows(in_.value, b * value_.batch + h * value_.head, value_.token);
    for (KeyRun& run : runs.run) {
      run.key_copy = Present(out_.present_key, in_.key.dtype, pair, run.begin, plan_.head_size);
      run.value_copy = Present(out_.present_value, in_.value.dtype, pair, run.begin, plan_.v_head_size);
    }
    return runs;
  }

  uint8_t* Present(void* base, DType dtype, int64_t pair, int64_t token, int64_t width) const {
    if (base == nullptr) return nullptr;
    return static_cast<uint8_t*>(base) + (pair * plan_.kv_len + token) * width * static_cast<int64_t>(BytesOf(dtype));
  }

  static void CopyRows(const RowSource& from, int64_t count, int64_t width, uint8_t* to) {
    const size_t bytes = static_cast<size_t>(width) * BytesOf(from.dtype);
    if (to == nullptr || bytes == 0) return;
    for (int64_t r = 0; r < count; ++r) std::memcpy(to + static_cast<size_t>(r) * bytes, from.Row(r), bytes);
  }

  void CopyPresent(int64_t pair) const {
    for (const KeyRun& run : RunsOf(pair).run) {
      CopyRows(run.key, run.end - run.begin, plan_.head_size, run.key_copy);
      CopyRows(run.value, run.end - run.begin, plan_.v_head_size, run.value_copy);
    }
  }

  MaskRows MaskOf(int64_t b, int64_t first_head) const {
    MaskRows rows;
    const TensorView& mask = in_.attn_mask;
    if (!mask.present) return rows;
    const int64_t rank = static_cast<int64_t>(mask.shape.size());
    const auto dim = [&](int64_t from_right) { return from_right <= rank ? mask.shape[rank - from_right] : 1; };
    rows.dtype = mask.dtype;
    rows.key_count = rank == 0 ? 0 : dim(1);
    rows.key_stride = rank == 0 ? 0 : 1;
    rows.token_stride = dim(2) == 1 ? 0 : dim(1);
    rows.head_stride = dim(3) == 1 ? 0 : dim(1) * dim(2);
    const int64_t batch_stride = dim(4) == 1 ? 0 : dim(1) * dim(2) * dim(3);
    const int64_t first = b * batch_stride + first_head * rows.head_stride;
    static constexpr uint8_t kNothing = 0;
    rows.data = mask.data == nullptr ? &kNothing
                                     : static_cast<const uint8_t*>(mask.data) +
                                           first * static_cast<int64_t>(BytesOf(mask.dtype));
    return rows;
  }

  AttentionItem ItemOf(int64_t pair, int64_t block, const Runs& runs) const {
    const int64_t b = pair / plan_.kv_heads, h = pair % plan_.kv_heads * group_;
    const int64_t bytes = static_cast<int64_t>(BytesOf(plan_.output_dtype));
    AttentionItem item;
    item.head_size = plan_.head_size;
    item.v_head_size = plan_.v_head_size;
    item.group = group_;
    item.token_begin = block * plan_.query_block;
    item.token_end = std::min(plan_.q_len, item.token_begin + plan_.query_block);
    item.key_end = plan_.kv_len;
    item.scale = plan_.scale;
    item.softcap = std::max(0.0f, plan_.attributes.softcap);
    item.visibility.is_causal = plan_.attributes.is_causal;
    item.visibility.left_window = plan_.attributes.left_window_size;
    item.visibility.right_window = plan_.attributes.right_window_size;
    item.visibility.offset = plan_.past_len;
    item.visibility.limit = plan_.kv_len;
    if (in_.nonpad_kv_seqlen.present) {
      item.visibility.limit = Nonpad(b);
      item.visibility.offset = item.visibility.limit - plan_.q_len;
    }
    item.mask = MaskOf(b, h);
    item.runs = runs.run;
    item.run_count = 2;
    item.query_dtype = plan_.output_dtype;
    item.query = static_cast<const uint8_t*>(in_.query.data) + (b * query_.batch + h * query_.head) * bytes;
    item.query_head_stride = query_.head;
    item.query_token_stride = query_.token;
    item.output = static_cast<uint8_t*>(out_.output) + (b * output_.batch + h * output_.head) * bytes;
    item.output_head_stride = output_.head;
    item.output_token_stride = output_.token;
    if (out_.scores != nullptr) {
      item.scores.data = static_cast<uint8_t*>(out_.scores) +
                         (b * plan_.q_heads + h) * plan_.q_len * plan_.kv_len * bytes;
      item.scores.mode = plan_.attributes.qk_matmul_output_mode;
      item.scores.head_stride = plan_.q_len * plan_.kv_len;
      item.scores.token_stride = plan_.kv_len;
      item.scores.kv_len = plan_.kv_len;
    }
    return item;
  }

  void RunOne(int64_t pair, int64_t block, int64_t piece) const {
    const Runs runs = blocks_ == 1 ? RunsOf(pair) : WithoutCopies(RunsOf(pair));
    AttentionItem item = ItemOf(pair, block, runs);
    if (plan_.key_pieces > 1) {
      const int64_t tiles = (plan_.kv_len + kTileKeys - 1) / kTileKeys;
      item.key_begin = tiles * piece / plan_.key_pieces * kTileKeys;
      item.key_end = std::min(plan_.kv_len, tiles * (piece + 1) / plan_.key_pieces * kTileKeys);
      item.output = nullptr;
      item.partial = PartialOf(pair, piece);
    }
    kernels().run_item(item);
  }

  static Runs WithoutCopies(Runs runs) {
    for (KeyRun& run : runs.run) run.key_copy = run.value_copy = nullptr;
    return runs;
  }

  void Merge(int64_t pair) const {
    const Runs runs = RunsOf(pair);
    const AttentionItem item = ItemOf(pair, 0, runs);
    std::unique_ptr<PartialState[]> partials(new PartialState[static_cast<size_t>(plan_.key_pieces)]);
    for (int64_t p = 0; p < plan_.key_pieces; ++p) partials[static_cast<size_t>(p)] = PartialOf(pair, p);
    kernels().merge(item, partials.get(), static_cast<size_t>(plan_.key_pieces));
  }

  // A piece's output rows, maxima and sums lie behind one another.
  void AllocatePartials(int64_t pairs) {
    rows_ = plan_.q_len * group_;
    element_bytes_ = plan_.compute_in_double ? 8 : 4;
    padded_ = kernels().padded_v_head_size(plan_.v_head_size);
    const int64_t elements = rows_ * (padded_ + 2);
    partials_ = hwy::AllocateAligned<uint8_t>(
        static_cast<size_t>(pairs * plan_.key_pieces * elements * element_bytes_));
    if (!partials_) throw std::bad_alloc();
  }

  PartialState PartialOf(int64_t pair, int64_t piece) const {
    const int64_t elements = rows_ * (padded_ + 2);
    uint8_t* start = partials_.get() + (pair * plan_.key_pieces + piece) * elements * element_bytes_;
    return {start, start + rows_ * padded_ * element_bytes_, start + rows_ * (padded_ + 1) * element_bytes_};
  }

  const AttentionPlan& plan_;
  const AttentionInputs& in_;
  const AttentionOutputs& out_;
  const int64_t group_;
  Layout query_, key_, value_, output_;
  int64_t blocks_ = 0;
  int64_t rows_ = 0, padded_ = 0, element_bytes_ = 0;
  hwy::AlignedFreeUniquePtr<uint8_t[]> partials_;
};

}  // namespace

void RunAttention(const AttentionPlan& plan, const AttentionInputs& inputs, const AttentionOutputs& outputs,
                  Executor& executor) {
  AttentionRun run(plan, inputs, outputs);
  run.CheckNonpad();
  const double work = static_cast<double>(plan.batch) * static_cast<double>(plan.q_heads) *
                      static_cast<double>(plan.q_len) * static_cast<double>(plan.kv_len) *
                      static_cast<double>(plan.head_size + plan.v_head_size);
  if (work < kSerialWork) {
    SerialExecutor serial;
    run.Run(serial);
  } else {
    run.Run(executor);
  }
}

}  // namespace onnx_ai_rt
