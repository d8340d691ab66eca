#include "cache/quantize_cache.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <utility>

#include "cache/message_fields.h"

namespace onnx_ai_rt {
namespace {

// Bytes of floats or of a copy that one job handles, and what a batch of small jobs adds up to.
constexpr int64_t kJobBytes = int64_t{1} << 20;
constexpr int64_t kCopyBytes = int64_t{1} << 24;
constexpr int64_t kBatchBytes = int64_t{1} << 18;

std::vector<bool> SelectedBlocks(const std::string& op_name, size_t count, const int64_t* indices,
                                 int64_t index_count) {
  std::vector<bool> selected(count, false);
  for (int64_t i = 0; i < index_count; ++i) {
    const int64_t index = indices[i];
    if (index < 0 || static_cast<uint64_t>(index) >= count) {
      Fail(op_name, ": input block_indices: expected indices of the ", count, " blocks of the cache, from 0 on, got ",
           index, " at position ", i);
    }
    if (selected[static_cast<size_t>(index)]) {
      Fail(op_name, ": input block_indices: expected each index once, got ", index, " again at position ", i);
    }
    selected[static_cast<size_t>(index)] = true;
  }
  return selected;
}

BlockSpec SpecOf(const BlockView& block, const Encoding (&encodings)[2]) {
  BlockSpec spec;
  spec.start = block.start;
  spec.length = block.length;
  spec.batch = block.key().stored.batch;
  spec.heads = block.key().stored.heads;
  spec.capacity = block.capacity();
  for (int side = 0; side < 2; ++side) {
    const PayloadView& payload = block.sides[side];
    spec.sides[side] = {encodings[side], payload.stored.width, payload.has_name,
                        payload.has_doc, payload.name,         payload.doc};
  }
  WireReader reader(block.content, kWireDepth - 1);
  WireField field;
  while (reader.Next(&field)) {
    if (IsUnknownBlockField(field)) spec.unknown.push_back(field.whole);
  }
  return spec;
}

void AddCopy(const uint8_t* begin, const uint8_t* end, QuantizeCachePlan* plan) {
  if (begin == end) return;
  OutputPiece piece;
  piece.offset = plan->output_size;
  piece.size = static_cast<size_t>(end - begin);
  piece.copied = begin;
  plan->output_size += piece.size;
  plan->pieces.push_back(std::move(piece));
}

// Cuts the pieces into jobs by their sizes alone, and small jobs into batches.
void AddJobs(QuantizeCachePlan* plan) {
  int64_t batch_bytes = kBatchBytes;
  const auto add = [&](const OutputJob& job, int64_t bytes) {
    if (batch_bytes >= kBatchBytes) {
      plan->batches.push_back(plan->jobs.size());
      batch_bytes = 0;
    }
    batch_bytes += bytes;
    plan->jobs.push_back(job);
  };
  for (size_t i = 0; i < plan->pieces.size(); ++i) {
    const OutputPiece& piece = plan->pieces[i];
    if (piece.copied != nullptr) {
      const int64_t size = static_cast<int64_t>(piece.size);
      for (int64_t begin = 0; begin < size; begin += kCopyBytes) {
        const int64_t end = std::min(size, begin + kCopyBytes);
        add({i, 0, begin, end}, end - begin);
      }
      continue;
    }
    for (int side = 0; side < 2; ++side) {
      const int64_t row_bytes = std::max<int64_t>(1, 4 * piece.spec.sides[side].width);
      const int64_t rows = piece.spec.batch * piece.spec.heads * piece.spec.capacity;
      int64_t step = std::max<int64_t>(1, kJobBytes / row_bytes / kRowAlignment) * kRowAlignment;
      // A typed field is gathered by the job: once. Rows without values cost nothing, however many there are.
      const PayloadView& payload = plan->view.blocks[piece.block].sides[side];
      if (payload.typed_field >= 0 || payload.byte_size == 0) step = std::max<int64_t>(1, rows);
      int64_t begin = 0;
      do {  // once at least: the job with the first row of the key writes the block's headers
        const int64_t end = std::min(rows, begin + step);
        add({i, side, begin, end}, (end - begin) * row_bytes);
        begin = end;
      } while (begin < rows);
    }
  }
  plan->batches.push_back(plan->jobs.size());
}

}  // namespace

QuantizeCachePlan PlanQuantizeCache(const std::string& op_name, ByteSpan cache, const int64_t* block_indices,
                                    int64_t index_count, const Encoding& key, const Encoding& value) {
  QuantizeCachePlan plan;
  plan.op_name = op_name;
  plan.view = ParsePagedCache(cache, op_name, "cache");
  const std::vector<bool> selected = SelectedBlocks(op_name, plan.view.blocks.size(), block_indices, index_count);
  const Encoding encodings[2] = {key, value};
  const uint8_t* copied_from = cache.data;
  for (size_t i = 0; i < plan.view.blocks.size(); ++i) {
    if (!selected[i]) continue;
    const BlockView& block = plan.view.blocks[i];
    AddCopy(copied_from, block.whole.data, &plan);
    copied_from = block.whole.end();
    OutputPiece piece;
    piece.offset = plan.output_size;
    piece.block = i;
    piece.spec = SpecOf(block, encodings);
    piece.layout = LayOutBlock(piece.spec);
    piece.size = piece.layout.size;
    plan.output_size += piece.size;
    plan.pieces.push_back(std::move(piece));
  }
  AddCopy(copied_from, cache.end(), &plan);
  AddJobs(&plan);
  return plan;
}

void RunQuantizeCache(const QuantizeCachePlan& plan, uint8_t* out, Executor& executor) {
  // Of several failures the first in the cache is reported, whichever thread meets one first.
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  std::atomic<size_t> first_failure{kNone};
  const auto run_job = [&](const OutputJob& job) {
    const OutputPiece& piece = plan.pieces[job.piece];
    uint8_t* to = out + piece.offset;
    if (piece.copied != nullptr) {
      std::memcpy(to + job.begin, piece.copied + job.begin, static_cast<size_t>(job.end - job.begin));
      return;
    }
    if (job.side == 0 && job.begin == 0) WriteBlock(piece.spec, piece.layout, to);
    std::vector<uint8_t> gathered;
    const StoredPayload source = Contiguous(plan.view, plan.view.blocks[piece.block].sides[job.side], &gathered);
    const Conversion result =
        ConvertRows(source, piece.spec.length, piece.spec.sides[job.side].encoding, piece.spec.capacity, job.begin,
                    job.end, to + piece.layout.payload_offset[job.side]);
    if (result == Conversion::kDone) return;
    const size_t place = 2 * job.piece + static_cast<size_t>(job.side);
    size_t known = first_failure.load();
    while (place < known && !first_failure.compare_exchange_weak(known, place)) {
    }
  };
  executor.ParallelFor(plan.batches.size() - 1, [&](size_t batch) {
    for (size_t i = plan.batches[batch]; i < plan.batches[batch + 1]; ++i) run_job(plan.jobs[i]);
  });

  if (first_failure == kNone) return;
  const OutputPiece& piece = plan.pieces[first_failure / 2];
  const int side = static_cast<int>(first_failure % 2);
  const Encoding& encoding = piece.spec.sides[side].encoding;
  std::vector<uint8_t> gathered;
  const StoredPayload source = Contiguous(plan.view, plan.view.blocks[piece.block].sides[side], &gathered);
  const CachePlace place{plan.op_name, "cache", static_cast<int64_t>(piece.block), SideName(static_cast<Side>(side))};
  const DType range = IsCodeType(encoding.dtype) ? DType::kFloat : encoding.dtype;
  place.Fail("expected finite values in the valid rows, within the range of ", DTypeName(range), ", got ",
             DescribeFailure(source, piece.spec.length, encoding));
}

}  // namespace onnx_ai_rt
