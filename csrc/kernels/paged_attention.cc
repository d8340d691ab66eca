#include "kernels/paged_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention_driver.h"
#include "kernels/error.h"

namespace onnx_ai_rt {
namespace {

// Whether a row of it is bytes of one scale.
bool IsReadInPlace(const StoredPayload& payload) {
  const AffineParameters& affine = payload.affine;
  const bool one_pair = !payload.IsAffine() || affine.axis < 0 || (affine.stride[2] == 0 && affine.stride[3] == 0);
  return one_pair && payload.width * BitsOf(payload.dtype) % 8 == 0;
}

RowSource PageRows(const StoredPayload& payload, int64_t b, int64_t h) {
  RowSource rows;
  if (payload.width == 0) {  // no values, in whatever format
    rows.dtype = DType::kFloat;
    return rows;
  }
  const AffineParameters& affine = payload.affine;
  if (!IsReadInPlace(payload)) {
    rows.payload = &payload;
    rows.batch = b;
    rows.head = h;
    return rows;
  }
  rows.dtype = payload.dtype;
  rows.stride_bytes = payload.width * BitsOf(payload.dtype) / 8;
  rows.data = payload.data + (b * payload.heads + h) * payload.capacity * rows.stride_bytes;
  if (payload.IsAffine()) {
    const int64_t pair = affine.axis < 0 ? 0 : affine.PairOf(b, h, 0, 0);
    rows.scale = affine.axis < 0 ? affine.first_scale : ScaleOf(affine, pair);
    rows.zero_point = affine.axis < 0 ? affine.first_zero_point : ZeroPointOf(affine, payload.dtype, pair);
  }
  return rows;
}

int PartsOf(const StoredPayload& payload) {
  return payload.width != 0 && IsReadInPlace(payload) ? BFloat16Parts(payload.dtype) : 0;
}

class PagedTask final : public AttentionTask {
 public:
  PagedTask(const PagedAttentionPlan& plan, const PagedAttentionInputs& inputs, void* out) : plan_(plan), in_(inputs) {
    sizes = {plan.batch,     plan.q_heads,    plan.kv_heads, plan.new_len, plan.past_len + plan.new_len,
             plan.head_size, plan.v_head_size};
    split = {plan.query_block, plan.key_pieces};
    scale = plan.scale;
    softcap = std::max(0.0f, plan.attributes.softcap);
    query_dtype = in_.query.dtype;
    query = static_cast<const uint8_t*>(in_.query.data);
    output = static_cast<uint8_t*>(out);
    query_layout = {plan.q_heads * plan.new_len * plan.head_size, plan.new_len * plan.head_size, plan.head_size};
    output_layout = {plan.q_heads * plan.new_len * plan.v_head_size, plan.new_len * plan.v_head_size, plan.v_head_size};
  }

  void RunsOf(int64_t pair, int64_t begin, int64_t end, std::vector<KeyRun>& runs) const override {
    const int64_t b = pair / plan_.kv_heads, h = pair % plan_.kv_heads;
    const KeyPage* const last = in_.pages + in_.page_count;
    const KeyPage* page = std::upper_bound(in_.pages, last, begin,
                                           [](int64_t key, const KeyPage& p) { return key < p.start + p.length; });
    const KeyPage* const behind =
        std::lower_bound(page, last, end, [](const KeyPage& p, int64_t key) { return p.start < key; });
    runs.reserve(static_cast<size_t>(behind - page) + 1);
    for (; page != behind; ++page) {
      KeyRun run;
      run.begin = page->start;
      run.end = page->start + page->length;
      run.key = PageRows(page->key, b, h);
      run.value = PageRows(page->value, b, h);
      runs.push_back(run);
    }
    if (end <= plan_.past_len) return;
    KeyRun run;
    run.begin = plan_.past_len;
    run.end = plan_.past_len + plan_.new_len;
    run.key = NewRows(in_.key, pair, plan_.head_size);
    run.value = NewRows(in_.value, pair, plan_.v_head_size);
    runs.push_back(run);
  }

  Visibility VisibilityOf(int64_t) const override {
    Visibility v;
    v.is_causal = plan_.attributes.is_causal;
    v.left_window = plan_.attributes.left_window_size;
    v.offset = plan_.past_len;
    v.limit = plan_.past_len + plan_.new_len;
    return v;
  }

 private:
  RowSource NewRows(const TensorView& view, int64_t pair, int64_t width) const {
    const int64_t bytes = width * static_cast<int64_t>(BytesOf(view.dtype));
    RowSource rows;
    rows.data = static_cast<const uint8_t*>(view.data) + pair * plan_.new_len * bytes;
    rows.dtype = view.dtype;
    rows.stride_bytes = bytes;
    return rows;
  }

  const PagedAttentionPlan& plan_;
  const PagedAttentionInputs& in_;
};

class Checker {
 public:
  Checker(const PagedAttentionInputs& inputs, PagedAttentionPlan& plan) : in_(inputs), plan_(plan) {}

  void Run() {
    const AttentionAttributes& a = plan_.attributes;
    if (a.scale && !std::isfinite(*a.scale)) Attribute("scale", "expected a finite number, got ", *a.scale);
    if (!std::isfinite(a.softcap)) Attribute("softcap", "expected a finite number, got ", a.softcap);
    if (a.left_window_size < -1) {
      Attribute("left_window_size", "expected -1 (unbounded) or more, got ", a.left_window_size);
    }
    CheckNewTokens();
    for (size_t i = 0; i < in_.page_count; ++i) CheckPage(i, in_.pages[i]);
    if (in_.page_count != 0) {
      const KeyPage& last = in_.pages[in_.page_count - 1];
      plan_.past_len = last.start + last.length;
    }
  }

 private:
  template <typename... Parts>
  [[noreturn]] void Attribute(const char* name, const Parts&... parts) const {
    Fail(plan_.op_name, ": attribute ", name, ": ", parts...);
  }
  template <typename... Parts>
  [[noreturn]] void Input(const char* name, const Parts&... parts) const {
    Fail(plan_.op_name, ": input ", name, ": ", parts...);
  }

  void CheckTensor(const char* name, const TensorView& view) const {
    if (!view.present) Input(name, "expected a tensor, got none");
    if (!IsDenseType(view.dtype)) {
      Input(name, "expected type float, float16 or bfloat16, got ", DTypeName(view.dtype));
    }
    if (view.dtype != in_.query.dtype) {
      Input(name, "expected the type of Q, ", DTypeName(in_.query.dtype), ", got ", DTypeName(view.dtype));
    }
    if (view.shape.size() != 4) Input(name, "expected rank 4, got shape ", ShapeText(view.shape));
  }

  void Expect(const char* name, const TensorView& view, const char* what, int64_t expected, int64_t got) const {
    if (expected != got) {
      Input(name, "expected ", what, ", ", expected, ", got ", got, " in shape ", ShapeText(view.shape));
    }
  }

  void CheckNewTokens() {
    CheckTensor("Q", in_.query);
    CheckTensor("K", in_.key);
    CheckTensor("V", in_.value);
    const Shape &q = in_.query.shape, &k = in_.key.shape, &v = in_.value.shape;
    if (q[2] < 1) Input("Q", "expected at least one token, got shape ", ShapeText(q));
    if (q[1] < 1) Input("Q", "expected at least one head, got shape ", ShapeText(q));
    if (k[1] < 1) Input("K", "expected at least one head, got shape ", ShapeText(k));
    Expect("K", in_.key, "the batch size of Q", q[0], k[0]);
    Expect("V", in_.value, "the batch size of Q", q[0], v[0]);
    Expect("V", in_.value, "the heads of K", k[1], v[1]);
    Expect("K", in_.key, "the sequence length of Q", q[2], k[2]);
    Expect("V", in_.value, "the sequence length of Q", q[2], v[2]);
    Expect("K", in_.key, "the head size of Q", q[3], k[3]);
    if (q[1] % k[1] != 0) {
      Input("Q", "expected a number of heads that is a multiple of the ", k[1], " key/value heads, got ", q[1]);
    }
    plan_.batch = q[0];
    plan_.q_heads = q[1];
    plan_.kv_heads = k[1];
    plan_.new_len = q[2];
    plan_.head_size = q[3];
    plan_.v_head_size = v[3];
    plan_.output_shape = {q[0], q[1], q[2], v[3]};
  }

  void CheckPage(size_t i, const KeyPage& page) const {
    CheckPayload(i, "key", page.key, plan_.head_size, "K", in_.key);
    CheckPayload(i, "value", page.value, plan_.v_head_size, "V", in_.value);
  }

  void CheckPayload(size_t i, const char* side, const StoredPayload& payload, int64_t width, const char* name,
                    const TensorView& view) const {
    if (payload.batch == plan_.batch && payload.heads == plan_.kv_heads && payload.width == width) return;
    Fail(plan_.op_name, ": input past, block ", i, ", ", side, ": expected batch, heads and width of ", name, ", (",
         plan_.batch, ",", plan_.kv_heads, ",", width, "), got (", payload.batch, ",", payload.heads, ",",
         payload.width, ") where the shape of ", name, " is ", ShapeText(view.shape));
  }

  const PagedAttentionInputs& in_;
  PagedAttentionPlan& plan_;
};

}  // namespace

PagedAttentionPlan PlanPagedAttention(const std::string& op_name, const AttentionAttributes& attributes,
                                      const PagedAttentionInputs& inputs) {
  PagedAttentionPlan plan;
  plan.op_name = op_name;
  plan.attributes = attributes;
  Checker(inputs, plan).Run();
  plan.scale = attributes.scale ? static_cast<double>(*attributes.scale)
                                : (plan.head_size > 0 ? 1.0 / std::sqrt(static_cast<double>(plan.head_size)) : 1.0);
  const AttentionSizes sizes{plan.batch,     plan.q_heads,    plan.kv_heads, plan.new_len, plan.past_len + plan.new_len,
                             plan.head_size, plan.v_head_size};
  const AttentionSplit split = ChooseSplit(sizes, false, true);
  plan.query_block = split.query_block;
  plan.key_pieces = split.key_pieces;
  int parts = BFloat16Parts(inputs.key.dtype);  // and V's
  for (size_t i = 0; i < inputs.page_count; ++i) {
    parts = MostParts(parts, MostParts(PartsOf(inputs.pages[i].key), PartsOf(inputs.pages[i].value)));
  }
  const bool direct = split.query_block * (plan.q_heads / plan.kv_heads) <= kDirectRows;
  plan.path = "paged_" + PathOf(direct, false, inputs.query.dtype, parts);
  return plan;
}

void RunPagedAttention(const PagedAttentionPlan& plan, const PagedAttentionInputs& inputs, void* output,
                       Executor& executor) {
  const PagedTask task(plan, inputs, output);
  if (ElementCount(plan.output_shape) != 0) RunTask(task, executor);
}

}  // namespace onnx_ai_rt
