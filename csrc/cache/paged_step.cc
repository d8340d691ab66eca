#include "cache/paged_step.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cache/payload.h"
#include "kernels/error.h"

namespace onnx_ai_rt {
namespace {

constexpr size_t kCopyBytes = size_t{1} << 24;  // that one thread copies at a time

// New blocks of tokens without values: the tokens cost nothing, however many there are, but their blocks do.
constexpr int64_t kMaxEmptyBlocks = int64_t{1} << 20;

void CopyBytes(ByteSpan from, uint8_t* to, Executor& executor) {
  executor.ParallelFor((from.size + kCopyBytes - 1) / kCopyBytes, [&](size_t i) {
    const size_t begin = i * kCopyBytes;
    std::memcpy(to + begin, from.data + begin, std::min(kCopyBytes, from.size - begin));
  });
}

StoredPayload InOnePiece(const PayloadView& payload, PagedStepPlan* plan) {
  if (payload.typed_field < 0) return payload.stored;
  return Contiguous(plan->view, payload, &plan->gathered.emplace_back());
}

void AddPages(PagedStepPlan* plan) {
  plan->pages.reserve(plan->view.blocks.size());
  for (const BlockView& block : plan->view.blocks) {
    KeyPage& page = plan->pages.emplace_back();
    page.start = block.start;
    page.length = block.length;
    page.key = InOnePiece(block.key(), plan);
    page.value = InOnePiece(block.value(), plan);
  }
}

void CheckTokenCount(const std::string& op_name, int64_t max_tokens, int64_t past, int64_t added) {
  int64_t total;
  const bool overflow = __builtin_add_overflow(past, added, &total);
  if (!overflow && (max_tokens <= 0 || total <= max_tokens)) return;
  Fail(op_name, ": input past: expected at most ", overflow ? INT64_MAX : max_tokens,
       " tokens together with the new ones", overflow ? "" : " (max_tokens)", ", got ", past, " and ", added);
}

// A dimension of 0 must not hide that others have no product: sizes and strides are computed in any order.
void CheckProduct(const std::string& op_name, const char* input, const char* of, const Shape& shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) {
    if (dim == 0 || (!__builtin_mul_overflow(count, dim, &count) && count <= kMaxPayloadValues)) continue;
    Fail(op_name, ": input ", input, ": expected dimensions", of, " with a product of at most 2^57, zeros aside, got ",
         ShapeText(shape));
  }
}

void CheckEmptyBlocks(const std::string& op_name, const StoredPayload (&tokens)[2], int64_t block_size) {
  const int64_t count = tokens[0].capacity, blocks = (count - 1) / block_size + 1;
  if (tokens[0].Values() != 0 || tokens[1].Values() != 0 || blocks <= kMaxEmptyBlocks) return;
  Fail(op_name, ": input K: expected at most ", kMaxEmptyBlocks, " new blocks of tokens without values, got ", blocks,
       " for ", count, " tokens and block_size ", block_size);
}

}  // namespace

PagedStepPlan PlanPagedStep(const std::string& op_name, const PagedStepAttributes& attributes,
                            const PagedStepInputs& inputs, Executor& executor) {
  PagedStepPlan plan;
  if (attributes.block_size < 1) {
    Fail(op_name, ": attribute block_size: expected at least 1, got ", attributes.block_size);
  }
  plan.past = inputs.past;
  plan.view = ParsePagedCache(inputs.past, op_name, "past");
  AddPages(&plan);
  CheckProduct(op_name, "Q", "", inputs.query.shape);
  CheckProduct(op_name, "K", "", inputs.key.shape);
  CheckProduct(op_name, "V", "", inputs.value.shape);
  if (inputs.key.shape.size() == 4) {
    CheckTokenCount(op_name, attributes.max_tokens, plan.view.tokens, inputs.key.shape[2]);
  }
  plan.inputs = {inputs.query, inputs.key, inputs.value, plan.pages.data(), plan.pages.size()};
  plan.attention = PlanPagedAttention(op_name, attributes.attention, plan.inputs);
  CheckProduct(op_name, "V", " of output Y", plan.attention.output_shape);

  const StoredPayload tokens[2] = {AsPayload(inputs.key), AsPayload(inputs.value)};
  CheckEmptyBlocks(op_name, tokens, attributes.block_size);
  Encoding encodings[2];
  for (int side = 0; side < 2; ++side) {
    encodings[side].dtype = tokens[side].dtype;
    if (inputs.encodings[side]) encodings[side] = *inputs.encodings[side];
    CheckNewTokens(op_name, side == 0 ? "K" : "V", tokens[side], encodings[side].dtype, executor);
  }
  plan.append = PlanAppend(tokens[0], tokens[1], encodings[0], encodings[1], plan.view.tokens, attributes.block_size);
  return plan;
}

void RunPagedStep(const PagedStepPlan& plan, const PagedStepOutputs& outputs, Executor& executor) {
  if (outputs.present != nullptr) {
    CopyBytes(plan.past, outputs.present, executor);
    WriteNewBlocks(plan.append, outputs.present + plan.past.size, executor);
  }
  if (outputs.appended != nullptr) {
    if (outputs.present != nullptr) {
      CopyBytes({outputs.present + plan.past.size, plan.append.size}, outputs.appended, executor);
    } else {
      WriteNewBlocks(plan.append, outputs.appended, executor);
    }
  }
  RunPagedAttention(plan.attention, plan.inputs, outputs.output, executor);
}

}  // namespace onnx_ai_rt
