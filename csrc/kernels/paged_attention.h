// Attention over pages of keys and values in any mix of formats, read where they lie, and the new tokens behind them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/executor.h"
#include "kernels/quantize.h"
#include "kernels/tensor_view.h"

namespace onnx_ai_rt {

// Tokens [start, start + length) of the past.
struct KeyPage {
  int64_t start = 0, length = 0;
  StoredPayload key, value;
};

// Query (B,Hq,S,D), key (B,Hkv,S,D), value (B,Hkv,S,Dv): the new tokens, of one type of float, float16 or bfloat16.
struct PagedAttentionInputs {
  TensorView query, key, value;
  const KeyPage* pages = nullptr;  // ascending, without gaps; they fit the new keys and values
  size_t page_count = 0;
};

// Of AttentionAttributes, scale, softcap, is_causal and left_window_size count.
struct PagedAttentionPlan {
  std::string op_name;
  AttentionAttributes attributes;
  int64_t batch = 0, q_heads = 0, kv_heads = 0, new_len = 0, past_len = 0, head_size = 0, v_head_size = 0;
  double scale = 1.0;
  Shape output_shape;
  int64_t query_block = 0, key_pieces = 1;
  std::string path;  // name for kernel_runs()
};

// Validates shapes, types and attributes, and the pages against the new tokens. Throws InvalidArgument.
PagedAttentionPlan PlanPagedAttention(const std::string& op_name, const AttentionAttributes& attributes,
                                      const PagedAttentionInputs& inputs);

// Writes Y (B,Hq,S,Dv) in the query's type.
void RunPagedAttention(const PagedAttentionPlan& plan, const PagedAttentionInputs& inputs, void* output,
                       Executor& executor);

}  // namespace onnx_ai_rt
