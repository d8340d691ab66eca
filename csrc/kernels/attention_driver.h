// What Attention and PagedAttention have in common: cutting the work into items, running them, merging their pieces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention_item.h"
#include "kernels/bfloat16_parts.h"
#include "kernels/executor.h"

namespace onnx_ai_rt {

// Items of the work: blocks of query tokens, and pieces of the keys where blocks are too few. Both follow from the
// problem alone, so that the result does not depend on the number of threads.
struct AttentionSplit {
  int64_t query_block = 0;
  int64_t key_pieces = 1;
};

struct AttentionSizes {
  int64_t batch = 0, q_heads = 0, kv_heads = 0, q_len = 0, kv_len = 0, head_size = 0, v_head_size = 0;

  int64_t pairs() const { return batch * kv_heads; }  // of a batch entry and a key/value head
  int64_t group() const { return q_heads / kv_heads; }
};

AttentionSplit ChooseSplit(const AttentionSizes& sizes, bool compute_in_double, bool may_split_keys);

// The name of the way that items take: data_parts are the BFloat16Parts of all keys and values. An item whose own are
// fewer may take a faster one.
std::string PathOf(bool direct, bool compute_in_double, DType query, int data_parts);

// Strides, in elements, of a tensor of queries or outputs.
struct HeadLayout {
  int64_t batch = 0, head = 0, token = 0;
};

// One call of an operator. The fields are the queries' side; the methods say where keys come from and who sees them.
class AttentionTask {
 public:
  virtual ~AttentionTask() = default;

  // Fills `runs` with ascending runs that cover the keys [begin, end) of pair b * kv_heads + h, or more.
  virtual void RunsOf(int64_t pair, int64_t begin, int64_t end, std::vector<KeyRun>& runs) const = 0;
  virtual Visibility VisibilityOf(int64_t b) const = 0;
  virtual MaskRows MaskOf(int64_t, int64_t) const { return {}; }       // batch entry, first head
  virtual ScoreOutput ScoresOf(int64_t, int64_t) const { return {}; }  // batch entry, first head

  AttentionSizes sizes;
  AttentionSplit split;
  bool compute_in_double = false;
  bool visit_all_keys = false;  // the runs have copies to make: every key is visited, by one item
  double scale = 1.0, softcap = 0.0;
  DType query_dtype = DType::kUndefined;  // and the output's
  const uint8_t* query = nullptr;
  uint8_t* output = nullptr;
  HeadLayout query_layout, output_layout;
};

// Runs the task; on the calling thread alone where it is too small to share.
void RunTask(const AttentionTask& task, Executor& executor);

}  // namespace onnx_ai_rt
