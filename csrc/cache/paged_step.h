// ai.rt::PagedAttention over bytes: PlanPagedStep -> PagedStepPlan -> RunPagedStep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/append_tokens.h"
#include "cache/paged_cache.h"
#include "kernels/executor.h"
#include "kernels/paged_attention.h"

namespace onnx_ai_rt {

struct PagedStepAttributes {
  AttentionAttributes attention;  // scale, softcap, is_causal and left_window_size count
  int64_t block_size = 16;        // tokens of a new block at most
  int64_t max_tokens = 0;         // of past and new tokens together; no limit unless positive
};

struct PagedStepInputs {
  TensorView query, key, value;
  ByteSpan past;                         // a serialized cache
  std::optional<Encoding> encodings[2];  // of new keys and values; absent: their own type
};

// Everything that is known before outputs are allocated. The inputs' memory must stay until it ran.
struct PagedStepPlan {
  ByteSpan past;
  PagedCacheView view;
  std::vector<KeyPage> pages;
  std::vector<std::vector<uint8_t>> gathered;  // payloads of pages that do not lie in one piece
  PagedAttentionInputs inputs;
  PagedAttentionPlan attention;
  AppendPlan append;

  size_t present_size() const { return past.size + append.size; }
};

// What to write; null where it is not wanted.
struct PagedStepOutputs {
  void* output = nullptr;       // Y, plan.attention.output_shape
  uint8_t* present = nullptr;   // plan.present_size() bytes
  uint8_t* appended = nullptr;  // plan.append.size bytes
};

// Validates the whole cache, the new tokens' values and all else. Throws InvalidArgument.
PagedStepPlan PlanPagedStep(const std::string& op_name, const PagedStepAttributes& attributes,
                            const PagedStepInputs& inputs, Executor& executor);

// Only `present` costs time in proportion to the past's bytes, beside what attention reads.
void RunPagedStep(const PagedStepPlan& plan, const PagedStepOutputs& outputs, Executor& executor);

}  // namespace onnx_ai_rt
