// ai.rt::PagedAttention and ai.rt::PagedCacheLength.
#include "cache/encoding_inputs.h"
#include "cache/paged_step.h"
#include "kernels/error.h"
#include "ort/operators.h"

namespace onnx_ai_rt {
namespace {

enum Input : size_t { kQuery, kKey, kValue, kPast, kKeyScale, kKeyZeroPoint, kValueScale, kValueZeroPoint };
enum Output : size_t { kY, kPresent, kAppended };

ByteSpan CacheBytes(const std::string& op_label, const char* name, const TensorView& cache) {
  if (cache.shape.size() != 1) {
    Fail(op_label, ": input ", name, ": expected a tensor of rank 1, got shape ", ShapeText(cache.shape));
  }
  return {static_cast<const uint8_t*>(cache.data), static_cast<size_t>(cache.shape[0])};
}

class PagedAttentionKernel final : public Kernel {
 public:
  explicit PagedAttentionKernel(const NodeInfo& node) : op_label_(node.op_label()) {
    attributes_.block_size = node.Int("block_size").value_or(16);
    attributes_.max_tokens = node.Int("max_tokens").value_or(0);
    attributes_.attention.is_causal = node.Int("is_causal").value_or(1) != 0;
    attributes_.attention.left_window_size = node.Int("left_window_size").value_or(-1);
    attributes_.attention.scale = node.Float("scale");
    attributes_.attention.softcap = node.Float("softcap").value_or(0.0f);
    wants_present_ = node.WantsOutput(kPresent);
    wants_appended_ = node.WantsOutput(kAppended);
  }

  void Compute(NodeRun& run) const override {
    PagedStepInputs inputs;
    inputs.query = run.Input(kQuery);
    inputs.key = run.Input(kKey);
    inputs.value = run.Input(kValue);
    inputs.past = CacheBytes(op_label_, "past", run.Input(kPast));
    inputs.encodings[0] = ReadOptionalEncoding(op_label_, "key", run.Input(kKeyScale), run.Input(kKeyZeroPoint));
    inputs.encodings[1] = ReadOptionalEncoding(op_label_, "value", run.Input(kValueScale), run.Input(kValueZeroPoint));
    const PagedStepPlan plan = PlanPagedStep(op_label_, attributes_, inputs, run);
    PagedStepOutputs outputs;
    outputs.output = run.Output(kY, plan.attention.output_shape);
    if (wants_present_) outputs.present = Bytes(run, kPresent, plan.present_size());
    if (wants_appended_) outputs.appended = Bytes(run, kAppended, plan.append.size);
    RunPagedStep(plan, outputs, run);
    run.Ran(plan.attention.path);
  }

 private:
  static uint8_t* Bytes(const NodeRun& run, size_t index, size_t size) {
    return static_cast<uint8_t*>(run.Output(index, {static_cast<int64_t>(size)}));
  }

  std::string op_label_;
  PagedStepAttributes attributes_;
  bool wants_present_ = false, wants_appended_ = false;
};

class PagedCacheLengthKernel final : public Kernel {
 public:
  explicit PagedCacheLengthKernel(const NodeInfo& node) : op_label_(node.op_label()) {}

  void Compute(NodeRun& run) const override {
    const PagedCacheView view = ParsePagedCache(CacheBytes(op_label_, "cache", run.Input(0)), op_label_, "cache");
    *static_cast<int64_t*>(run.Output(0, {})) = view.tokens;
    run.Ran("headers");
  }

 private:
  std::string op_label_;
};

void InferShapes(ShapeInference& inference) {
  const auto query = inference.Input(kQuery);
  const auto value = inference.Input(kValue);
  SymbolicShape y(4);
  if (query && query->size() == 4) y = *query;
  y[3] = value && value->size() == 4 ? (*value)[3] : Dim{};
  inference.SetFirstOutput(inference.InputType(kQuery), y);
}

Variant MakeVariant(const std::vector<DType>& types) {
  const DType t = types[0], key = types[1], value = types[2];
  return {{t, t, t, DType::kUInt8, DType::kFloat, key, DType::kFloat, value}, {t, DType::kUInt8, DType::kUInt8}};
}

}  // namespace

OperatorSpec PagedAttentionOperator() {
  const std::vector<DType> floats = {DType::kFloat, DType::kHalf, DType::kBFloat16};
  const std::vector<DType> formats = {DType::kFloat, DType::kHalf,  DType::kBFloat16, DType::kInt8, DType::kUInt8,
                                      DType::kInt4,  DType::kUInt4, DType::kInt2,     DType::kUInt2};
  return {
      .name = "PagedAttention",
      .domains = {"ai.rt"},
      .inputs = {{"Q"},
                 {"K"},
                 {"V"},
                 {"past"},
                 {"key_scale", true},
                 {"key_zero_point", true},
                 {"value_scale", true},
                 {"value_zero_point", true}},
      .outputs = {{"Y"}, {"present", true}, {"appended", true}},
      .variants = Grid({floats, formats, formats}, MakeVariant),
      .create = [](const NodeInfo& node) -> std::unique_ptr<Kernel> {
        return std::make_unique<PagedAttentionKernel>(node);
      },
      .infer_shapes = InferShapes,
  };
}

OperatorSpec PagedCacheLengthOperator() {
  return {
      .name = "PagedCacheLength",
      .domains = {"ai.rt"},
      .inputs = {{"cache"}},
      .outputs = {{"length"}},
      .variants = {{{DType::kUInt8}, {DType::kInt64}}},
      .create = [](const NodeInfo& node) -> std::unique_ptr<Kernel> {
        return std::make_unique<PagedCacheLengthKernel>(node);
      },
      .infer_shapes = [](ShapeInference& inference) { inference.SetFirstOutput(DType::kInt64, {}); },
  };
}

}  // namespace onnx_ai_rt
