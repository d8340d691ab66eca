// New tokens -> the serialized blocks that hold them: PlanAppend -> AppendPlan -> WriteNewBlocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cache/block_writer.h"
#include "kernels/executor.h"
#include "kernels/quantize.h"
#include "kernels/tensor_view.h"

namespace onnx_ai_rt {

struct NewBlock {
  BlockSpec spec;
  BlockLayout layout;
  size_t offset = 0;  // in the output
};

// Everything that is known before the output is allocated.
struct AppendPlan {
  StoredPayload tokens[2];  // key, value: dense, capacity S
  std::vector<NewBlock> blocks;
  size_t size = 0;  // bytes of all blocks
};

// The new keys or values (B,Hkv,S,width) of a dense type, as a payload.
StoredPayload AsPayload(const TensorView& tokens);

// Throws InvalidArgument where a value is not finite, or does not stay so in the format that it is to be stored in.
// input_name: "K" or "V".
void CheckNewTokens(const std::string& op_name, const char* input_name, const StoredPayload& tokens, DType target,
                    Executor& executor);

// Blocks of at most block_size tokens (>= 1), the first of which starts at token `start`; capacity is the length. The
// tokens' memory must stay until WriteNewBlocks ran, and all their values fit their encoding.
AppendPlan PlanAppend(const StoredPayload& key, const StoredPayload& value, const Encoding& key_encoding,
                      const Encoding& value_encoding, int64_t start, int64_t block_size);

// Fills plan.size bytes at out.
void WriteNewBlocks(const AppendPlan& plan, uint8_t* out, Executor& executor);

}  // namespace onnx_ai_rt
