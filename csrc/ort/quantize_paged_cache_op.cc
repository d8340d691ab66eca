// ai.rt::QuantizePagedCache.
#include "cache/encoding_inputs.h"
#include "cache/quantize_cache.h"
#include "kernels/error.h"
#include "ort/operators.h"

namespace onnx_ai_rt {
namespace {

enum Input : size_t { kCache, kBlockIndices, kKeyScale, kKeyZeroPoint, kValueScale, kValueZeroPoint };

class QuantizePagedCacheKernel final : public Kernel {
 public:
  explicit QuantizePagedCacheKernel(const NodeInfo& node) : op_label_(node.op_label()) {}

  void Compute(NodeRun& run) const override {
    const TensorView cache = run.Input(kCache);
    const TensorView indices = run.Input(kBlockIndices);
    RequireRank1("cache", cache);
    RequireRank1("block_indices", indices);
    const Encoding key = ReadEncoding(op_label_, "key", run.Input(kKeyScale), run.Input(kKeyZeroPoint));
    const Encoding value = ReadEncoding(op_label_, "value", run.Input(kValueScale), run.Input(kValueZeroPoint));
    const ByteSpan bytes{static_cast<const uint8_t*>(cache.data), static_cast<size_t>(cache.shape[0])};
    const QuantizeCachePlan plan =
        PlanQuantizeCache(op_label_, bytes, static_cast<const int64_t*>(indices.data), indices.shape[0], key, value);
    void* out = run.Output(0, {static_cast<int64_t>(plan.output_size)});
    RunQuantizeCache(plan, static_cast<uint8_t*>(out), run);
    run.Ran("rewrite");
  }

 private:
  void RequireRank1(const char* name, const TensorView& view) const {
    if (view.shape.size() != 1) {
      Fail(op_label_, ": input ", name, ": expected a tensor of rank 1, got shape ", ShapeText(view.shape));
    }
  }

  std::string op_label_;
};

Variant MakeVariant(const std::vector<DType>& types) {
  return {{DType::kUInt8, DType::kInt64, DType::kFloat, types[0], DType::kFloat, types[1]}, {DType::kUInt8}};
}

}  // namespace

OperatorSpec QuantizePagedCacheOperator() {
  const std::vector<DType> formats = {DType::kFloat, DType::kHalf,  DType::kBFloat16, DType::kInt8, DType::kUInt8,
                                      DType::kInt4,  DType::kUInt4, DType::kInt2,     DType::kUInt2};
  return {
      .name = "QuantizePagedCache",
      .domains = {"ai.rt"},
      .inputs =
          {{"cache"}, {"block_indices"}, {"key_scale"}, {"key_zero_point"}, {"value_scale"}, {"value_zero_point"}},
      .outputs = {{"quantized_cache"}},
      .variants = Grid({formats, formats}, MakeVariant),
      .create = [](const NodeInfo& node) -> std::unique_ptr<Kernel> {
        return std::make_unique<QuantizePagedCacheKernel>(node);
      },
      .infer_shapes = [](ShapeInference& inference) { inference.SetFirstOutput(DType::kUInt8, {Dim{}}); },
  };
}

}  // namespace onnx_ai_rt
