#include "cache/append_tokens.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "cache/paged_cache.h"
#include "kernels/error.h"

namespace onnx_ai_rt {
namespace {

// Values that one job handles; fewer are not worth waking a thread.
constexpr int64_t kJobValues = int64_t{1} << 17;

// Rows of one side of a block.
struct Job {
  const NewBlock* block;
  int side;
  int64_t begin, end;
};

// Cut by sizes alone; together the jobs write every byte.
std::vector<Job> JobsOf(const AppendPlan& plan) {
  std::vector<Job> jobs;
  for (const NewBlock& block : plan.blocks) {
    for (int side = 0; side < 2; ++side) {
      const int64_t width = std::max<int64_t>(1, block.spec.sides[side].width);
      const int64_t rows = block.spec.batch * block.spec.heads * block.spec.capacity;
      int64_t step = std::max<int64_t>(1, kJobValues / width / kRowAlignment) * kRowAlignment;
      // Rows without values cost nothing, however many there are.
      if (block.layout.payload_bytes[side] == 0) step = std::max<int64_t>(1, rows);
      int64_t begin = 0;
      do {  // once at least: the job with the first row of the key writes the block's headers
        const int64_t end = std::min(rows, begin + step);
        jobs.push_back({&block, side, begin, end});
        begin = end;
      } while (begin < rows);
    }
  }
  return jobs;
}

// The tokens of the block: the same rows in the same memory, counted from its first token on.
StoredPayload TokensOf(const AppendPlan& plan, const Job& job) {
  StoredPayload tokens = plan.tokens[job.side];
  const int64_t first = job.block->spec.start - plan.blocks.front().spec.start;
  tokens.data += first * tokens.width * static_cast<int64_t>(BytesOf(tokens.dtype));
  return tokens;
}

}  // namespace

StoredPayload AsPayload(const TensorView& tokens) {
  StoredPayload payload;
  payload.data = static_cast<const uint8_t*>(tokens.data);
  payload.dtype = tokens.dtype;
  payload.batch = tokens.shape[0];
  payload.heads = tokens.shape[1];
  payload.capacity = tokens.shape[2];
  payload.width = tokens.shape[3];
  return payload;
}

void CheckNewTokens(const std::string& op_name, const char* input_name, const StoredPayload& tokens, DType target,
                    Executor& executor) {
  const int64_t values = tokens.Values();
  std::atomic<bool> fits{true};
  executor.ParallelFor(static_cast<size_t>((values + kJobValues - 1) / kJobValues), [&](size_t i) {
    const int64_t begin = static_cast<int64_t>(i) * kJobValues;
    const int64_t end = std::min(values, begin + kJobValues);
    if (CheckRange(tokens, target, begin, end) != Conversion::kDone) fits = false;
  });
  if (fits) return;
  Encoding encoding;
  encoding.dtype = target;
  Fail(op_name, ": input ", input_name, ": expected finite values, within the range of ",
       DTypeName(IsCodeType(target) ? tokens.dtype : target), ", got ",
       DescribeFailure(tokens, tokens.capacity, encoding));
}

AppendPlan PlanAppend(const StoredPayload& key, const StoredPayload& value, const Encoding& key_encoding,
                      const Encoding& value_encoding, int64_t start, int64_t block_size) {
  AppendPlan plan;
  plan.tokens[0] = key;
  plan.tokens[1] = value;
  for (int64_t first = 0; first < key.capacity; first += plan.blocks.back().spec.length) {
    NewBlock block;
    block.spec.start = start + first;
    block.spec.length = std::min(block_size, key.capacity - first);
    block.spec.capacity = block.spec.length;
    block.spec.batch = key.batch;
    block.spec.heads = key.heads;
    block.spec.sides[0].encoding = key_encoding;
    block.spec.sides[0].width = key.width;
    block.spec.sides[1].encoding = value_encoding;
    block.spec.sides[1].width = value.width;
    block.layout = LayOutBlock(block.spec);
    block.offset = plan.size;
    plan.size += block.layout.size;
    plan.blocks.push_back(std::move(block));
  }
  return plan;
}

void WriteNewBlocks(const AppendPlan& plan, uint8_t* out, Executor& executor) {
  const std::vector<Job> jobs = JobsOf(plan);
  const auto run_job = [&](size_t i) {
    const Job& job = jobs[i];
    const BlockSpec& spec = job.block->spec;
    uint8_t* to = out + job.block->offset;
    if (job.side == 0 && job.begin == 0) WriteBlock(spec, job.block->layout, to);
    ConvertRows(TokensOf(plan, job), spec.length, spec.sides[job.side].encoding, spec.capacity, job.begin, job.end,
                to + job.block->layout.payload_offset[job.side]);
  };
  if (plan.tokens[0].Values() + plan.tokens[1].Values() <= kJobValues) {
    for (size_t i = 0; i < jobs.size(); ++i) run_job(i);
  } else {
    executor.ParallelFor(jobs.size(), run_job);
  }
}

}  // namespace onnx_ai_rt
