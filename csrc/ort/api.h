// The one place that includes ONNX Runtime's C header: its function table, its version and its element types.
#pragma once

#include <onnxruntime_c_api.h>

#include <stdexcept>
#include <string>

#include "kernels/tensor_view.h"

namespace onnx_ai_rt {

// The version of the runtime that loaded the library.
struct RuntimeVersion {
  int major = 0;
  int minor = 0;

  bool AtLeast(int major_wanted, int minor_wanted) const {
    return major > major_wanted || (major == major_wanted && minor >= minor_wanted);
  }
};

// Sets the function table, once, from what RegisterCustomOps receives. Throws std::runtime_error where the runtime is
// older than the headers, or where the process registers the library with a second copy of ONNX Runtime.
void SetApi(const OrtApiBase* base);

// Valid after SetApi.
const OrtApi& Api();
RuntimeVersion Runtime();
// "1.32.0"; empty before SetApi.
std::string RuntimeText();

// A failure that ONNX Runtime itself reported, with its code.
class RuntimeFailure : public std::runtime_error {
 public:
  RuntimeFailure(OrtErrorCode code, const std::string& message) : std::runtime_error(message), code(code) {}
  OrtErrorCode code;
};

// Throws RuntimeFailure unless `status` is null. Takes the status.
void Check(OrtStatus* status);

// True where the runtime can declare an operator with INT2 and UINT2 inputs.
bool HasTwoBitTypes(RuntimeVersion runtime);

// The number that declares `dtype` in an operator's signature to this runtime. It differs between runtimes for 2-bit
// types.
ONNXTensorElementDataType DeclaredType(DType dtype, RuntimeVersion runtime);

// The type of a tensor that a kernel received; kUndefined for types that no operator of the library takes.
DType ReceivedType(ONNXTensorElementDataType type);

}  // namespace onnx_ai_rt
