#include "ort/operator.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace onnx_ai_rt {
namespace {

// What ONNX Runtime holds for a node: the kernel and what every run of it needs.
class NodeKernel {
 public:
  NodeKernel(const NodeInfo& node, std::unique_ptr<Kernel> kernel)
      : kernel_(std::move(kernel)),
        op_label_(node.op_label()),
        node_name_(node.NodeName()),
        input_count_(node.InputCount()),
        output_count_(node.OutputCount()) {}

  void Compute(OrtKernelContext* context) const {
    NodeRun run(context, op_label_, node_name_, input_count_, output_count_);
    kernel_->Compute(run);
  }

 private:
  std::unique_ptr<Kernel> kernel_;
  std::string op_label_;
  std::string node_name_;
  size_t input_count_;
  size_t output_count_;
};

OrtCustomOpInputOutputCharacteristic Characteristic(const Slot& slot) {
  return slot.optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

std::vector<ONNXTensorElementDataType> Declared(const std::vector<DType>& types, RuntimeVersion runtime) {
  std::vector<ONNXTensorElementDataType> declared;
  declared.reserve(types.size());
  for (const DType type : types) declared.push_back(DeclaredType(type, runtime));
  return declared;
}

bool HasTwoBits(const std::vector<DType>& types) {
  return std::any_of(types.begin(), types.end(), [](DType type) { return BitsOf(type) == 2; });
}

}  // namespace

std::vector<Variant> Grid(const std::vector<std::vector<DType>>& groups,
                          Variant (*make)(const std::vector<DType>& types)) {
  size_t total = 1;
  for (const auto& group : groups) total *= group.size();
  std::vector<Variant> variants;
  variants.reserve(total);
  std::vector<DType> types(groups.size());
  for (size_t i = 0; i < total; ++i) {
    size_t rest = i;
    for (size_t g = groups.size(); g-- > 0;) {
      types[g] = groups[g][rest % groups[g].size()];
      rest /= groups[g].size();
    }
    variants.push_back(make(types));
  }
  return variants;
}

std::string OperatorLabel(const std::string& domain, const std::string& name) {
  return domain.empty() ? name : domain + "::" + name;
}

bool CanDeclare(const Variant& variant, RuntimeVersion runtime) {
  return HasTwoBitTypes(runtime) || (!HasTwoBits(variant.inputs) && !HasTwoBits(variant.outputs));
}

CustomOp::CustomOp(const OperatorSpec& spec, const Variant& variant, const std::string& domain, RuntimeVersion runtime)
    : OrtCustomOp{},
      spec_(spec),
      label_(OperatorLabel(domain, spec.name)),
      input_types_(Declared(variant.inputs, runtime)),
      output_types_(Declared(variant.outputs, runtime)) {
  version = ORT_API_VERSION;
  GetName = [](const OrtCustomOp* op) { return Self(op).spec_.name.c_str(); };
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // the CPU

  GetInputTypeCount = [](const OrtCustomOp* op) { return Self(op).input_types_.size(); };
  GetInputType = [](const OrtCustomOp* op, size_t i) { return Self(op).input_types_[i]; };
  GetInputCharacteristic = [](const OrtCustomOp* op, size_t i) { return Characteristic(Self(op).spec_.inputs[i]); };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  GetOutputTypeCount = [](const OrtCustomOp* op) { return Self(op).output_types_.size(); };
  GetOutputType = [](const OrtCustomOp* op, size_t i) { return Self(op).output_types_[i]; };
  GetOutputCharacteristic = [](const OrtCustomOp* op, size_t i) { return Characteristic(Self(op).spec_.outputs[i]); };
  // No slot is variadic, but ONNX Runtime asks.
  GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return std::numeric_limits<int>::max(); };

  CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info, void** kernel) {
    return Self(op).Create(info, kernel);
  };
  KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
    return Guarded([=] { static_cast<const NodeKernel*>(kernel)->Compute(context); });
  };
  KernelDestroy = [](void* kernel) { delete static_cast<NodeKernel*>(kernel); };

  // Earlier runtimes crash at session creation when a node with a shape function omits an input in the middle.
  if (spec.infer_shapes != nullptr && runtime.AtLeast(1, 24)) {
    InferOutputShapeFn = [](const OrtCustomOp* op, OrtShapeInferContext* context) {
      return Guarded([=] {
        ShapeInference inference(context);
        Self(op).spec_.infer_shapes(inference);
      });
    };
  }
}

OrtStatus* CustomOp::Create(const OrtKernelInfo* info, void** kernel) const noexcept {
  return Guarded([&] {
    const NodeInfo node(info, label_);
    *kernel = new NodeKernel(node, spec_.create(node));
  });
}

}  // namespace onnx_ai_rt
