#include "ort/api.h"

#include <charconv>
#include <cstring>

namespace onnx_ai_rt {
namespace {

const OrtApi* g_api = nullptr;
std::string g_runtime_text;
RuntimeVersion g_runtime;

RuntimeVersion ParseVersion(const std::string& text) {
  RuntimeVersion version;
  const char* end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.major);
  if (major.ptr != end && *major.ptr == '.') std::from_chars(major.ptr + 1, end, version.minor);
  return version;
}

}  // namespace

void SetApi(const OrtApiBase* base) {
  const char* text = base->GetVersionString();
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {
    throw std::runtime_error(std::string("onnx_ai_rt needs ONNX Runtime 1.") + std::to_string(ORT_API_VERSION) +
                             " or later, got " + text);
  }
  if (g_api != nullptr && g_api != api) {
    throw std::runtime_error("onnx_ai_rt is already registered with ONNX Runtime " + g_runtime_text +
                             " in this process and cannot serve a second copy of it, " + text);
  }
  if (g_api == api) return;
  g_runtime_text = text;
  g_runtime = ParseVersion(g_runtime_text);
  g_api = api;
}

const OrtApi& Api() { return *g_api; }
RuntimeVersion Runtime() { return g_runtime; }
std::string RuntimeText() { return g_runtime_text; }

void Check(OrtStatus* status) {
  if (status == nullptr) return;
  const RuntimeFailure failure(Api().GetErrorCode(status), Api().GetErrorMessage(status));
  Api().ReleaseStatus(status);
  throw failure;
}

bool HasTwoBitTypes(RuntimeVersion runtime) { return runtime.AtLeast(1, 24); }

ONNXTensorElementDataType DeclaredType(DType dtype, RuntimeVersion runtime) {
  // Runtimes 1.24 to 1.30 number the 2-bit types in a signature as ONNX does, later ones as in their own enumeration,
  // which is one less because it has no number for FLOAT8E8M0.
  const bool own_numbers = runtime.AtLeast(1, 31);
  auto number = static_cast<int>(dtype);
  if (own_numbers && (dtype == DType::kUInt2 || dtype == DType::kInt2)) --number;
  return static_cast<ONNXTensorElementDataType>(number);
}

DType ReceivedType(ONNXTensorElementDataType type) {
  // 24 and 25 are UINT2 and INT2, which the headers that the library is built against may not name yet.
  switch (static_cast<int>(type)) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4: return static_cast<DType>(type);
    case 24: return DType::kUInt2;
    case 25: return DType::kInt2;
    default: return DType::kUndefined;
  }
}

}  // namespace onnx_ai_rt
