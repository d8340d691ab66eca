// The inputs by which an operator is told a format: a scale, and a zero point whose type is the format.
#pragma once

#include <optional>
#include <string>

#include "kernels/quantize.h"
#include "kernels/tensor_view.h"

namespace onnx_ai_rt {

// side: "key" or "value"; the inputs are SIDE_scale and SIDE_zero_point. Throws InvalidArgument.
Encoding ReadEncoding(const std::string& op_name, const std::string& side, const TensorView& scale,
                      const TensorView& zero_point);

// The same where both inputs may be left out, but not one of them.
std::optional<Encoding> ReadOptionalEncoding(const std::string& op_name, const std::string& side,
                                             const TensorView& scale, const TensorView& zero_point);

// The encoding that these numbers give as inputs.
Encoding MakeEncoding(const std::string& op_name, const std::string& side, float scale, DType dtype,
                      int32_t zero_point);

}  // namespace onnx_ai_rt
