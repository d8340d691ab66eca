// ai.rt::QuantizePagedCache over bytes: PlanQuantizeCache -> QuantizeCachePlan -> RunQuantizeCache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/block_writer.h"
#include "cache/paged_cache.h"
#include "kernels/executor.h"

namespace onnx_ai_rt {

// A part of the output: a run of input bytes as they are, or a block in new formats.
struct OutputPiece {
  size_t offset = 0;
  size_t size = 0;
  const uint8_t* copied = nullptr;  // null for a block
  size_t block = 0;                 // its index in the cache
  BlockSpec spec;
  BlockLayout layout;
};

// A share of a piece that one thread fills: bytes [begin, end) of a copy, or rows of one side of a block.
struct OutputJob {
  size_t piece = 0;
  int side = 0;
  int64_t begin = 0, end = 0;
};

// Everything that is known before the output is allocated; the input's bytes must stay until it ran.
struct QuantizeCachePlan {
  std::string op_name;
  PagedCacheView view;
  std::vector<OutputPiece> pieces;
  std::vector<OutputJob> jobs;
  std::vector<size_t> batches;  // first job of each group that is worth a thread's while; then jobs.size()
  size_t output_size = 0;
};

// Validates the whole cache and the arguments. Throws InvalidArgument.
QuantizeCachePlan PlanQuantizeCache(const std::string& op_name, ByteSpan cache, const int64_t* block_indices,
                                    int64_t index_count, const Encoding& key, const Encoding& value);

// Fills output_size bytes. Throws InvalidArgument where a valid row holds NaN or infinity or overflows; then the bytes
// at out are worth nothing.
void RunQuantizeCache(const QuantizeCachePlan& plan, uint8_t* out, Executor& executor);

}  // namespace onnx_ai_rt
