// All operators of the library. Each is described in the file that bears its name.
#pragma once

#include "ort/operator.h"

namespace onnx_ai_rt {

OperatorSpec AttentionOperator();
OperatorSpec QuantizePagedCacheOperator();
OperatorSpec PagedAttentionOperator();
OperatorSpec PagedCacheLengthOperator();

// In the order of registration; built once, lives as long as the process.
const std::vector<OperatorSpec>& AllOperators();

}  // namespace onnx_ai_rt
