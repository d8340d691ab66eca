#include "cache/encoding_inputs.h"

#include <cmath>

#include "cache/wire_reader.h"
#include "kernels/error.h"

namespace onnx_ai_rt {
namespace {

bool IsScalar(const Shape& shape) { return shape.empty() || (shape.size() == 1 && shape[0] == 1); }

}  // namespace

Encoding ReadEncoding(const std::string& op_name, const std::string& side, const TensorView& scale,
                      const TensorView& zero_point) {
  const std::string scale_place = op_name + ": input " + side + "_scale: ";
  const std::string zero_place = op_name + ": input " + side + "_zero_point: ";
  if (scale.dtype != DType::kFloat || !IsScalar(scale.shape)) {
    Fail(scale_place, "expected a float scalar, got ", DTypeName(scale.dtype), " of shape ", ShapeText(scale.shape));
  }
  Encoding encoding;
  encoding.scale = LoadFloat(static_cast<const uint8_t*>(scale.data));
  if (!(encoding.scale > 0.0f) || std::isinf(encoding.scale)) {
    Fail(scale_place, "expected a positive and finite number, got ", encoding.scale);
  }
  encoding.dtype = zero_point.dtype;
  const bool affine = IsCodeType(zero_point.dtype);
  if ((!affine && !IsDenseType(zero_point.dtype)) || !IsScalar(zero_point.shape)) {
    Fail(zero_place, "expected a scalar of int8, uint8, int4, uint4, int2, uint2, float, float16 or bfloat16, got ",
         DTypeName(zero_point.dtype), " of shape ", ShapeText(zero_point.shape));
  }
  if (affine) {
    encoding.zero_point = CodeAt(static_cast<const uint8_t*>(zero_point.data), zero_point.dtype, 0);
  } else {
    encoding.scale = 1.0f;
  }
  return encoding;
}

std::optional<Encoding> ReadOptionalEncoding(const std::string& op_name, const std::string& side,
                                             const TensorView& scale, const TensorView& zero_point) {
  if (!scale.present && !zero_point.present) return std::nullopt;
  if (!scale.present || !zero_point.present) {
    Fail(op_name, ": input ", side, scale.present ? "_zero_point" : "_scale", ": expected both ", side, "_scale and ",
         side, "_zero_point or neither, got only ", side, scale.present ? "_scale" : "_zero_point");
  }
  return ReadEncoding(op_name, side, scale, zero_point);
}

Encoding MakeEncoding(const std::string& op_name, const std::string& side, float scale, DType dtype,
                      int32_t zero_point) {
  if (IsCodeType(dtype) && (zero_point < LowestCode(dtype) || zero_point > HighestCode(dtype))) {
    Fail(op_name, ": input ", side, "_zero_point: expected a code of ", DTypeName(dtype), ", got ", zero_point);
  }
  const uint8_t code = static_cast<uint8_t>(zero_point & (IsCodeType(dtype) ? (1 << BitsOf(dtype)) - 1 : 0));
  return ReadEncoding(op_name, side, {&scale, DType::kFloat, {}, true}, {&code, dtype, {}, true});
}

}  // namespace onnx_ai_rt
