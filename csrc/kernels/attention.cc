// Attention's side of the driver: dense keys of past and new tokens, masks, scores, present outputs.
#include "kernels/attention.h"

#include <algorithm>
#include <cstring>

#include "kernels/attention_driver.h"
#include "kernels/error.h"

namespace onnx_ai_rt {
namespace {

HeadLayout LayoutOf(bool rank3, int64_t heads, int64_t length, int64_t width) {
  if (rank3) return {length * heads * width, width, heads * width};
  return {heads * length * width, length * width, width};
}

class DenseTask final : public AttentionTask {
 public:
  DenseTask(const AttentionPlan& plan, const AttentionInputs& inputs, const AttentionOutputs& outputs)
      : plan_(plan), in_(inputs), out_(outputs) {
    sizes = {plan.batch, plan.q_heads, plan.kv_heads, plan.q_len, plan.kv_len, plan.head_size, plan.v_head_size};
    split = {plan.query_block, plan.key_pieces};
    compute_in_double = plan.compute_in_double;
    scale = plan.scale;
    softcap = std::max(0.0f, plan.attributes.softcap);
    query_dtype = plan.output_dtype;
    query = static_cast<const uint8_t*>(in_.query.data);
    output = static_cast<uint8_t*>(out_.output);
    query_layout = LayoutOf(plan.rank3, plan.q_heads, plan.q_len, plan.head_size);
    output_layout = LayoutOf(plan.rank3, plan.q_heads, plan.q_len, plan.v_head_size);
    key_ = LayoutOf(plan.rank3, plan.kv_heads, plan.new_len, plan.head_size);
    value_ = LayoutOf(plan.rank3, plan.kv_heads, plan.new_len, plan.v_head_size);
    // With one block of queries each key tile is read by one item, which copies it to present on the way.
    const bool one_block = plan.query_block != 0 && plan.query_block == plan.q_len;
    visit_all_keys = one_block && WantsPresent() && WritesRows();
    UnpackMask();
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

  void Run(Executor& executor) const {
    const bool writes_present = ElementCount(plan_.present_key_shape) + ElementCount(plan_.present_value_shape) != 0;
    if (WantsPresent() && writes_present && !visit_all_keys) {
      executor.ParallelFor(static_cast<size_t>(sizes.pairs()), [&](size_t i) { CopyPresent(static_cast<int64_t>(i)); });
    }
    if (WritesRows()) RunTask(*this, executor);
  }

  void RunsOf(int64_t pair, int64_t, int64_t, std::vector<KeyRun>& runs) const override {
    const int64_t b = pair / plan_.kv_heads, h = pair % plan_.kv_heads;
    const int64_t past = plan_.past_len;
    if (past != 0) {
      Add(0, past, Rows(in_.past_key, pair * past * plan_.head_size, plan_.head_size),
          Rows(in_.past_value, pair * past * plan_.v_head_size, plan_.v_head_size), pair, runs);
    }
    if (plan_.new_len != 0) {
      Add(past, plan_.kv_len, Rows(in_.key, b * key_.batch + h * key_.head, key_.token),
          Rows(in_.value, b * value_.batch + h * value_.head, value_.token), pair, runs);
    }
  }

  Visibility VisibilityOf(int64_t b) const override {
    Visibility v;
    v.is_causal = plan_.attributes.is_causal;
    v.left_window = plan_.attributes.left_window_size;
    v.right_window = plan_.attributes.right_window_size;
    v.limit = in_.nonpad_kv_seqlen.present ? Nonpad(b) : plan_.kv_len;
    v.offset = in_.nonpad_kv_seqlen.present ? v.limit - plan_.q_len : plan_.past_len;
    return v;
  }

  MaskRows MaskOf(int64_t b, int64_t first_head) const override {
    MaskRows rows;
    const TensorView& mask = mask_;
    if (!mask.present) return rows;
    const size_t rank = mask.shape.size();
    const auto dim = [&](size_t from_right) { return from_right <= rank ? mask.shape[rank - from_right] : 1; };
    rows.dtype = mask.dtype;
    rows.sum_in_float = plan_.sum_in_float;
    rows.key_count = rank == 0 ? 0 : dim(1);
    rows.key_stride = rank == 0 ? 0 : 1;
    rows.token_stride = dim(2) == 1 ? 0 : dim(1);
    rows.head_stride = dim(3) == 1 ? 0 : dim(1) * dim(2);
    const int64_t batch_stride = dim(4) == 1 ? 0 : dim(1) * dim(2) * dim(3);
    const int64_t first = b * batch_stride + first_head * rows.head_stride;
    static constexpr uint8_t kNothing = 0;  // an empty mask may have no memory, but masks all the same
    rows.data = mask.data == nullptr
                    ? &kNothing
                    : static_cast<const uint8_t*>(mask.data) + first * static_cast<int64_t>(BytesOf(mask.dtype));
    return rows;
  }

  ScoreOutput ScoresOf(int64_t b, int64_t first_head) const override {
    ScoreOutput scores;
    if (out_.scores == nullptr) return scores;
    const int64_t row = (b * plan_.q_heads + first_head) * plan_.q_len;
    scores.data =
        static_cast<uint8_t*>(out_.scores) + row * plan_.kv_len * static_cast<int64_t>(BytesOf(plan_.output_dtype));
    scores.mode = plan_.attributes.qk_matmul_output_mode;
    scores.head_stride = plan_.q_len * plan_.kv_len;
    scores.token_stride = plan_.kv_len;
    scores.kv_len = plan_.kv_len;
    return scores;
  }

 private:
  // 4-bit masks are rare: they become bytes, so that rows begin at whole ones.
  void UnpackMask() {
    mask_ = in_.attn_mask;
    if (!mask_.present || BitsOf(mask_.dtype) != 4) return;
    const int64_t count = ElementCount(mask_.shape);
    for (int64_t i = 0; i < count; ++i) {
      unpacked_mask_.push_back(static_cast<int8_t>(CodeAt(static_cast<const uint8_t*>(mask_.data), mask_.dtype, i)));
    }
    mask_.data = unpacked_mask_.data();
    mask_.dtype = DType::kInt8;
  }

  // Rows without columns may be more than can be walked.
  bool WritesRows() const {
    return ElementCount(plan_.output_shape) != 0 || (out_.scores != nullptr && ElementCount(plan_.scores_shape) != 0);
  }

  bool WantsPresent() const { return out_.present_key != nullptr || out_.present_value != nullptr; }

  int64_t Nonpad(int64_t b) const {
    int64_t length;
    std::memcpy(&length, static_cast<const uint8_t*>(in_.nonpad_kv_seqlen.data) + b * 8, sizeof(length));
    return length;
  }

  static RowSource Rows(const TensorView& view, int64_t first_element, int64_t stride) {
    const int64_t bytes = static_cast<int64_t>(BytesOf(view.dtype));
    RowSource rows;
    rows.data = static_cast<const uint8_t*>(view.data) + first_element * bytes;
    rows.dtype = view.dtype;
    rows.stride_bytes = stride * bytes;
    return rows;
  }

  void Add(int64_t begin, int64_t end, const RowSource& key, const RowSource& value, int64_t pair,
           std::vector<KeyRun>& runs) const {
    KeyRun run;
    run.begin = begin;
    run.end = end;
    run.key = key;
    run.value = value;
    if (visit_all_keys) SetCopies(pair, run);
    runs.push_back(run);
  }

  void SetCopies(int64_t pair, KeyRun& run) const {
    run.key_copy = Present(out_.present_key, in_.key.dtype, pair, run.begin, plan_.head_size);
    run.value_copy = Present(out_.present_value, in_.value.dtype, pair, run.begin, plan_.v_head_size);
  }

  uint8_t* Present(void* base, DType dtype, int64_t pair, int64_t token, int64_t width) const {
    if (base == nullptr) return nullptr;
    return static_cast<uint8_t*>(base) + (pair * plan_.kv_len + token) * width * static_cast<int64_t>(BytesOf(dtype));
  }

  void CopyPresent(int64_t pair) const {
    std::vector<KeyRun> runs;
    RunsOf(pair, 0, plan_.kv_len, runs);
    for (KeyRun& run : runs) {
      SetCopies(pair, run);
      CopyRows(run.key, 0, run.end - run.begin, plan_.head_size, run.key_copy);
      CopyRows(run.value, 0, run.end - run.begin, plan_.v_head_size, run.value_copy);
    }
  }

  const AttentionPlan& plan_;
  const AttentionInputs& in_;
  const AttentionOutputs& out_;
  HeadLayout key_, value_;
  TensorView mask_;
  std::vector<int8_t> unpacked_mask_;
};

}  // namespace

void RunAttention(const AttentionPlan& plan, const AttentionInputs& inputs, const AttentionOutputs& outputs,
                  Executor& executor) {
  const DenseTask task(plan, inputs, outputs);
  task.CheckNonpad();
  task.Run(executor);
}

}  // namespace onnx_ai_rt
