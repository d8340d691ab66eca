// ONNX Attention (opsets 23 to 25): inputs -> PlanAttention -> AttentionPlan -> RunAttention.
//
// Letters: B batch, Hq query heads, Hkv key/value heads, S query tokens, L past tokens, N new key tokens, T = L + N,
// D head size of Q and K, Dv head size of V.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/executor.h"
#include "kernels/tensor_view.h"

namespace onnx_ai_rt {

struct AttentionAttributes {
  std::optional<float> scale;  // absent: 1/sqrt(D)
  bool is_causal = false;
  std::optional<int64_t> q_num_heads, kv_num_heads;
  float softcap = 0.0f;               // <= 0 is off
  bool softmax_in_double = false;     // softmax_precision is DOUBLE
  int64_t qk_matmul_output_mode = 0;  // 0 scaled, 1 after softcap, 2 after bias, 3 probabilities
  int64_t left_window_size = -1;      // -1: unbounded
  int64_t right_window_size = -1;
};

// Q, K, V of rank 4 (B,H,seq,D) or rank 3 (B,seq,H*D); the others may be absent (present = false).
struct AttentionInputs {
  TensorView query, key, value, attn_mask, past_key, past_value, nonpad_kv_seqlen;
};

// Which optional outputs are wanted.
struct AttentionRequest {
  bool present_key = false;
  bool present_value = false;
  bool scores = false;  // qk_matmul_output
};

// All that follows from shapes, types and attributes. Immutable; choices are readable by tests.
struct AttentionPlan {
  std::string op_name;  // for messages
  AttentionAttributes attributes;
  AttentionRequest request;
  int64_t batch = 0, q_heads = 0, kv_heads = 0, q_len = 0, past_len = 0, new_len = 0, kv_len = 0;
  int64_t head_size = 0, v_head_size = 0;
  bool rank3 = false;
  double scale = 1.0;
  bool compute_in_double = false;
  bool sum_in_float = false;  // computed in double, but the bias is added in float: neither Q nor the mask is wider
  Shape output_shape, present_key_shape, present_value_shape, scores_shape;
  DType output_dtype = DType::kUndefined;  // of Y and the scores
  int64_t query_block = 0;                 // query tokens of one work item
  int64_t key_pieces = 1;                  // parts into which the keys of one item are split, merged in order
  std::string path;                        // name for kernel_runs(): "streaming", "streaming_f64", ... + "+scores"
};

struct AttentionOutputs {
  void* output = nullptr;         // Y, in Q's type and rank
  void* present_key = nullptr;    // (B,Hkv,T,D) in K's type, or null
  void* present_value = nullptr;  // (B,Hkv,T,Dv) in V's type, or null
  void* scores = nullptr;         // (B,Hq,S,T) in Q's type, or null
};

// Validates shapes, types and attributes and chooses the path. `op_name` starts every message.
// Throws InvalidArgument.
AttentionPlan PlanAttention(const std::string& op_name, const AttentionAttributes& attributes,
                            const AttentionInputs& inputs, const AttentionRequest& request);

// Runs the plan for these inputs (the ones it was made for). Checks the values of nonpad_kv_seqlen before anything is
// written. Throws InvalidArgument.
void RunAttention(const AttentionPlan& plan, const AttentionInputs& inputs, const AttentionOutputs& outputs,
                  Executor& executor);

}  // namespace onnx_ai_rt
