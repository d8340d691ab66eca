#include "ort/shape_inference.h"

#include <atomic>
#include <memory>

namespace onnx_ai_rt {
namespace {

struct ReleaseInfo {
  void operator()(OrtTensorTypeAndShapeInfo* info) const { Api().ReleaseTensorTypeAndShapeInfo(info); }
};

// ONNX Runtime may place two tensors in one buffer when their shapes have equal names: no two unknown dimensions of a
// process share one.
std::string FreshName() {
  static std::atomic<int64_t> next{0};
  return "onnx_ai_rt_dim_" + std::to_string(next.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace

Dim operator/(const Dim& a, const Dim& b) {
  if (!a.IsNumber() || !b.IsNumber() || b.value == 0 || a.value % b.value != 0) return {};
  return Dim::Of(a.value / b.value);
}

Dim operator*(const Dim& a, const Dim& b) {
  int64_t product = 0;
  if (!a.IsNumber() || !b.IsNumber() || __builtin_mul_overflow(a.value, b.value, &product)) return {};
  return Dim::Of(product);
}

const OrtTensorTypeAndShapeInfo* ShapeInference::InputInfo(size_t index) const {
  size_t count = 0;
  Check(Api().ShapeInferContext_GetInputCount(context_, &count));
  if (index >= count) return nullptr;
  OrtTensorTypeAndShapeInfo* info = nullptr;  // stays the context's
  Check(Api().ShapeInferContext_GetInputTypeShape(context_, index, &info));
  return info;
}

DType ShapeInference::InputType(size_t index) const {
  const OrtTensorTypeAndShapeInfo* info = InputInfo(index);
  if (info == nullptr) return DType::kUndefined;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  Check(Api().GetTensorElementType(info, &type));
  return ReceivedType(type);
}

std::optional<SymbolicShape> ShapeInference::Input(size_t index) const {
  const OrtTensorTypeAndShapeInfo* info = InputInfo(index);
  if (info == nullptr) return std::nullopt;
  size_t rank = 0;
  Check(Api().GetDimensionsCount(info, &rank));
  if (rank == 0) return std::nullopt;
  std::vector<int64_t> values(rank);
  std::vector<const char*> names(rank, nullptr);
  Check(Api().GetDimensions(info, values.data(), rank));
  Check(Api().GetSymbolicDimensions(info, names.data(), rank));
  SymbolicShape shape(rank);
  for (size_t i = 0; i < rank; ++i) {
    if (names[i] != nullptr && names[i][0] != '\0') {
      shape[i].name = names[i];
    } else {
      shape[i].value = values[i];
    }
  }
  return shape;
}

int64_t ShapeInference::Int(const char* attribute) const {
  const OrtOpAttr* attr = nullptr;
  int64_t value = 0;
  size_t size = 0;
  OrtStatus* status = Api().ShapeInferContext_GetAttribute(context_, attribute, &attr);
  if (status == nullptr) status = Api().ReadOpAttr(attr, ORT_OP_ATTR_INT, &value, sizeof(value), &size);
  if (status == nullptr) return value;
  Api().ReleaseStatus(status);
  return 0;
}

void ShapeInference::SetFirstOutput(DType dtype, const SymbolicShape& shape) {
  std::vector<int64_t> values;
  std::vector<std::string> names;
  std::vector<const char*> name_pointers;
  for (const Dim& dim : shape) {
    values.push_back(dim.IsNumber() ? dim.value : -1);
    names.push_back(dim.IsNumber() ? "" : dim.IsKnown() ? dim.name : FreshName());
  }
  for (const std::string& name : names) name_pointers.push_back(name.c_str());
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(Api().CreateTensorTypeAndShapeInfo(&info));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, ReleaseInfo> owner(info);
  Check(Api().SetTensorElementType(info, DeclaredType(dtype, Runtime())));
  Check(Api().SetDimensions(info, values.data(), values.size()));
  Check(Api().SetSymbolicDimensions(info, name_pointers.data(), name_pointers.size()));
  Check(Api().ShapeInferContext_SetOutputTypeShape(context_, 0, info));
}

}  // namespace onnx_ai_rt
