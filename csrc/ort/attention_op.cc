// Attention in domain "" (in place of ONNX Runtime's own) and as ai.rt::Attention.
#include "kernels/attention.h"

#include <initializer_list>
#include <optional>

#include "ort/operators.h"

namespace onnx_ai_rt {
namespace {

enum Input : size_t { kQuery, kKey, kValue, kMask, kPastKey, kPastValue, kNonpadKvSeqlen };
enum Output : size_t { kY, kPresentKey, kPresentValue, kScores };

constexpr int64_t kOnnxDouble = 11;  // onnx.TensorProto.DOUBLE

class AttentionKernel final : public Kernel {
 public:
  explicit AttentionKernel(const NodeInfo& node) : op_label_(node.op_label()) {
    attributes_.scale = node.Float("scale");
    attributes_.is_causal = node.Int("is_causal").value_or(0) != 0;
    attributes_.q_num_heads = node.Int("q_num_heads");
    attributes_.kv_num_heads = node.Int("kv_num_heads");
    attributes_.softcap = node.Float("softcap").value_or(0.0f);
    attributes_.softmax_in_double = node.Int("softmax_precision").value_or(0) == kOnnxDouble;
    attributes_.qk_matmul_output_mode = node.Int("qk_matmul_output_mode").value_or(0);
    attributes_.left_window_size = node.Int("left_window_size").value_or(-1);
    attributes_.right_window_size = node.Int("right_window_size").value_or(-1);
    request_.present_key = node.WantsOutput(kPresentKey);
    request_.present_value = node.WantsOutput(kPresentValue);
    request_.scores = node.WantsOutput(kScores);
  }

  void Compute(NodeRun& run) const override {
    const AttentionInputs inputs{run.Input(kQuery),         run.Input(kKey),     run.Input(kValue),
                                 run.Input(kMask),          run.Input(kPastKey), run.Input(kPastValue),
                                 run.Input(kNonpadKvSeqlen)};
    const AttentionPlan plan = PlanAttention(op_label_, attributes_, inputs, request_);
    AttentionOutputs outputs;
    outputs.output = run.Output(kY, plan.output_shape);
    if (request_.present_key) outputs.present_key = run.Output(kPresentKey, plan.present_key_shape);
    if (request_.present_value) outputs.present_value = run.Output(kPresentValue, plan.present_value_shape);
    if (request_.scores) outputs.scores = run.Output(kScores, plan.scores_shape);
    RunAttention(plan, inputs, outputs, run);
    run.Ran(plan.path);
  }

 private:
  std::string op_label_;
  AttentionAttributes attributes_;
  AttentionRequest request_;
};

// Heads, tokens and head size of Q, K or V; all unknown where the shape is.
struct HeadDims {
  Dim batch, heads, tokens, width;
};

HeadDims HeadDimsOf(const std::optional<SymbolicShape>& shape, const Dim& heads) {
  if (!shape) return {};
  const SymbolicShape& s = *shape;
  if (s.size() == 4) return {s[0], s[1], s[2], s[3]};
  if (s.size() == 3) return {s[0], heads, s[1], s[2] / heads};
  return {};
}

Dim HeadsAttribute(const ShapeInference& inference, const char* name) {
  const int64_t heads = inference.Int(name);
  return heads > 0 ? Dim::Of(heads) : Dim{};
}

Dim FirstKnown(std::initializer_list<Dim> dims) {
  for (const Dim& dim : dims) {
    if (dim.IsKnown()) return dim;
  }
  return {};
}

void InferShapes(ShapeInference& inference) {
  const auto query = inference.Input(kQuery);
  if (!query) return;
  const DType type = inference.InputType(kQuery);
  const Dim kv_heads = HeadsAttribute(inference, "kv_num_heads");
  const HeadDims q = HeadDimsOf(query, HeadsAttribute(inference, "q_num_heads"));
  const HeadDims k = HeadDimsOf(inference.Input(kKey), kv_heads);
  const HeadDims v = HeadDimsOf(inference.Input(kValue), kv_heads);
  const Dim batch = FirstKnown({q.batch, k.batch, v.batch});
  if (query->size() == 4) inference.SetFirstOutput(type, {batch, q.heads, q.tokens, v.width});
  if (query->size() == 3) inference.SetFirstOutput(type, {batch, q.tokens, q.heads * v.width});
}

Variant MakeVariant(const std::vector<DType>& types) {
  const DType q = types[0], v = types[1];
  return {{q, q, v, DType::kUndefined, q, v, DType::kInt64}, {q, q, v, q}};
}

}  // namespace

OperatorSpec AttentionOperator() {
  const std::vector<DType> floats = {DType::kFloat, DType::kHalf, DType::kBFloat16, DType::kDouble};
  return {
      .name = "Attention",
      .domains = {"", "ai.rt"},
      .inputs = {{"Q"},
                 {"K"},
                 {"V"},
                 {"attn_mask", true},
                 {"past_key", true},
                 {"past_value", true},
                 {"nonpad_kv_seqlen", true}},
      .outputs = {{"Y"}, {"present_key", true}, {"present_value", true}, {"qk_matmul_output", true}},
      .variants = Grid({floats, floats}, MakeVariant),
      .create = [](const NodeInfo& node) -> std::unique_ptr<Kernel> { return std::make_unique<AttentionKernel>(node); },
      .infer_shapes = InferShapes,
  };
}

}  // namespace onnx_ai_rt
