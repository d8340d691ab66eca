// Element types and non-owning views of dense row-major tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace onnx_ai_rt {

// The values are those of onnx.TensorProto.DataType.
enum class DType : int32_t {
  kUndefined = 0,
  kFloat = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kUInt16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kHalf = 10,
  kDouble = 11,
  kUInt32 = 12,
  kUInt64 = 13,
  kBFloat16 = 16,
  kUInt4 = 21,
  kInt4 = 22,
  kUInt2 = 25,
  kInt2 = 26,
};

// "float", "float16", "int4", ... as ONNX spells them.
const char* DTypeName(DType dtype);

// Bits of one element; 0 for kUndefined.
inline int BitsOf(DType dtype) {
  switch (dtype) {
    case DType::kUInt2:
    case DType::kInt2: return 2;
    case DType::kUInt4:
    case DType::kInt4: return 4;
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kBool: return 8;
    case DType::kUInt16:
    case DType::kInt16:
    case DType::kHalf:
    case DType::kBFloat16: return 16;
    case DType::kFloat:
    case DType::kInt32:
    case DType::kUInt32: return 32;
    case DType::kDouble:
    case DType::kInt64:
    case DType::kUInt64: return 64;
    case DType::kUndefined: break;
  }
  return 0;
}

// Bytes of one element of a type of at least 8 bits.
inline size_t BytesOf(DType dtype) { return static_cast<size_t>(BitsOf(dtype)) / 8; }

inline bool IsFloating(DType dtype) {
  return dtype == DType::kFloat || dtype == DType::kHalf || dtype == DType::kBFloat16 || dtype == DType::kDouble;
}

using Shape = std::vector<int64_t>;

// "(2,3,4)"; "()" for a scalar.
std::string ShapeText(const Shape& shape);

// Product of the dimensions; throws InvalidArgument where it leaves 63 bits.
int64_t ElementCount(const Shape& shape);

// A dense row-major tensor that somebody else owns. `present` tells an omitted optional input from an empty one.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kUndefined;
  Shape shape;
  bool present = false;
};

}  // namespace onnx_ai_rt
