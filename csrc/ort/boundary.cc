#include "ort/boundary.h"

#include <memory>
#include <new>

#include "kernels/cpu_features.h"
#include "kernels/error.h"
#include "ort/kernel_runs.h"

namespace onnx_ai_rt {
namespace {

struct ReleaseInfo {
  void operator()(OrtTensorTypeAndShapeInfo* info) const { Api().ReleaseTensorTypeAndShapeInfo(info); }
};

// True, and no status left behind, where the call succeeded.
bool Succeeded(OrtStatus* status) {
  if (status == nullptr) return true;
  Api().ReleaseStatus(status);
  return false;
}

}  // namespace

OrtStatus* StatusOfCurrentException() noexcept {
  try {
    throw;
  } catch (const InvalidArgument& error) {
    return Api().CreateStatus(ORT_INVALID_ARGUMENT, error.what());
  } catch (const RuntimeFailure& error) {
    return Api().CreateStatus(error.code, error.what());
  } catch (const std::bad_alloc&) {
    return Api().CreateStatus(ORT_FAIL, "onnx_ai_rt: not enough memory");
  } catch (const std::exception& error) {
    return Api().CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
  } catch (...) {
    return Api().CreateStatus(ORT_RUNTIME_EXCEPTION, "onnx_ai_rt: unknown exception");
  }
}

std::string NodeInfo::NodeName() const {
  size_t size = 0;
  Check(Api().KernelInfo_GetNodeName(info_, nullptr, &size));
  std::string name(size, '\0');
  Check(Api().KernelInfo_GetNodeName(info_, name.data(), &size));
  name.resize(size == 0 ? 0 : size - 1);
  return name;
}

bool NodeInfo::Has(const char* name) const {
  int64_t integer = 0;
  float number = 0;
  size_t size = 0;
  return Succeeded(Api().KernelInfoGetAttribute_int64(info_, name, &integer)) ||
         Succeeded(Api().KernelInfoGetAttribute_float(info_, name, &number)) ||
         Succeeded(Api().KernelInfoGetAttribute_string(info_, name, nullptr, &size)) ||
         (size = 0, Succeeded(Api().KernelInfoGetAttributeArray_int64(info_, name, nullptr, &size))) ||
         (size = 0, Succeeded(Api().KernelInfoGetAttributeArray_float(info_, name, nullptr, &size)));
}

void NodeInfo::FailOnOtherType(const char* name, const char* expected) const {
  Fail(op_label_, ": attribute ", name, " of node '", NodeName(), "' must be ", expected, ", got another type");
}

std::optional<int64_t> NodeInfo::Int(const char* name) const {
  int64_t value = 0;
  if (Succeeded(Api().KernelInfoGetAttribute_int64(info_, name, &value))) return value;
  if (Has(name)) FailOnOtherType(name, "an integer");
  return std::nullopt;
}

std::optional<float> NodeInfo::Float(const char* name) const {
  float value = 0;
  if (Succeeded(Api().KernelInfoGetAttribute_float(info_, name, &value))) return value;
  if (Has(name)) FailOnOtherType(name, "a float");
  return std::nullopt;
}

size_t NodeInfo::InputCount() const {
  size_t count = 0;
  Check(Api().KernelInfo_GetInputCount(info_, &count));
  return count;
}

size_t NodeInfo::OutputCount() const {
  size_t count = 0;
  Check(Api().KernelInfo_GetOutputCount(info_, &count));
  return count;
}

bool NodeInfo::WantsOutput(size_t index) const {
  if (index >= OutputCount()) return false;
  size_t size = 0;
  Check(Api().KernelInfo_GetOutputName(info_, index, nullptr, &size));
  return size > 1;  // with the terminator
}

TensorView NodeRun::Input(size_t index) const {
  TensorView view;
  const OrtValue* value = nullptr;
  if (index >= input_count_) return view;
  Check(Api().KernelContext_GetInput(context_, index, &value));
  if (value == nullptr) return view;
  int has_value = 0;
  Check(Api().HasValue(value, &has_value));
  if (has_value == 0) return view;

  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(Api().GetTensorTypeAndShape(value, &info));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, ReleaseInfo> owner(info);
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  size_t rank = 0;
  Check(Api().GetTensorElementType(info, &type));
  Check(Api().GetDimensionsCount(info, &rank));
  view.shape.resize(rank);
  Check(Api().GetDimensions(info, view.shape.data(), rank));

  void* data = nullptr;
  Check(Api().GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  view.data = data;
  view.dtype = ReceivedType(type);
  view.present = true;
  return view;
}

void* NodeRun::Output(size_t index, const Shape& shape) const {
  if (index >= output_count_) return nullptr;
  OrtValue* value = nullptr;
  Check(Api().KernelContext_GetOutput(context_, index, shape.data(), shape.size(), &value));
  if (value == nullptr) return nullptr;
  void* data = nullptr;
  Check(Api().GetTensorMutableData(value, &data));
  // A tensor without elements may have no buffer, but it is wanted all the same.
  alignas(64) static char no_elements[64];
  return data == nullptr ? no_elements : data;
}

void NodeRun::Ran(const std::string& path) const {
  const std::string target = ChosenCpuTarget();
  CountKernelRun(op_label_, path, target);
  const OrtLogger* logger = nullptr;
  OrtLoggingLevel level = ORT_LOGGING_LEVEL_FATAL;
  Check(Api().KernelContext_GetLogger(context_, &logger));
  Check(Api().Logger_GetLoggingSeverityLevel(logger, &level));
  if (level > ORT_LOGGING_LEVEL_VERBOSE) return;
  const std::string line = "onnx_ai_rt: " + op_label_ + " node '" + node_name_ + "' ran path " + path + " on " + target;
  Check(Api().Logger_LogMessage(logger, ORT_LOGGING_LEVEL_VERBOSE, line.c_str(), __FILE_NAME__, __LINE__, __func__));
}

void NodeRun::Run(size_t count, Body body, void* context) {
  if (count == 0) return;
  // No limit on the number of batches: work items differ in cost, and the pool hands them out one by one.
  Check(Api().KernelContext_ParallelFor(context_, body, count, 0, context));
}

}  // namespace onnx_ai_rt
