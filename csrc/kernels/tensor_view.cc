#include "kernels/tensor_view.h"

#include "kernels/error.h"

namespace onnx_ai_rt {

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat: return "float";
    case DType::kUInt8: return "uint8";
    case DType::kInt8: return "int8";
    case DType::kUInt16: return "uint16";
    case DType::kInt16: return "int16";
    case DType::kInt32: return "int32";
    case DType::kInt64: return "int64";
    case DType::kBool: return "bool";
    case DType::kHalf: return "float16";
    case DType::kDouble: return "double";
    case DType::kUInt32: return "uint32";
    case DType::kUInt64: return "uint64";
    case DType::kBFloat16: return "bfloat16";
    case DType::kUInt4: return "uint4";
    case DType::kInt4: return "int4";
    case DType::kUInt2: return "uint2";
    case DType::kInt2: return "int2";
    case DType::kUndefined: break;
  }
  return "undefined";
}

std::string ShapeText(const Shape& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ",";
    text += std::to_string(shape[i]);
  }
  return text + ")";
}

int64_t ElementCount(const Shape& shape) {
  int64_t count = 1;
  bool overflow = false;
  for (const int64_t dim : shape) {
    if (dim == 0) return 0;
    overflow |= __builtin_mul_overflow(count, dim, &count);
  }
  if (overflow) Fail("shape ", ShapeText(shape), " has more elements than 63 bits can count");
  return count;
}

}  // namespace onnx_ai_rt
