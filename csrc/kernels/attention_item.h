// The streaming kernel's unit of work: some query tokens of one batch entry and one key/value head, against a range of
// its keys. Plain structs: the drivers fill them, attention-inl.h computes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/quantize.h"
#include "kernels/tensor_view.h"
#include "kernels/tile_unit.h"

namespace onnx_ai_rt {

// Keys are processed in tiles [64 t, 64 t + 64). The grid is absolute, so the result of a row depends on the problem
// alone.
inline constexpr int64_t kTileKeys = 64;

// Query rows up to which scores are plain dot products of stored rows; more rows pay for a transposed copy of a tile.
inline constexpr int64_t kDirectRows = 16;

// Rows of one head: row r starts at data + r * stride_bytes. Of codes, a value is (code - zero_point) * scale; a row of
// them begins at a whole byte.
struct RowSource {
  const uint8_t* data = nullptr;
  DType dtype = DType::kUndefined;
  int64_t stride_bytes = 0;
  float scale = 1.0f;
  int32_t zero_point = 0;
  // Not null: rows that are not so simple (a scale within a row, a row that begins inside a byte). They are decoded to
  // floats a tile at a time; row r is token r of this batch entry and head, and the fields above are unused.
  const StoredPayload* payload = nullptr;
  int64_t batch = 0, head = 0;

  const uint8_t* Row(int64_t r) const { return data + r * stride_bytes; }
};

// Copies rows [first, first + count) of `width` elements to row `first` of dense rows at `to`; nothing where it is
// null.
inline void CopyRows(const RowSource& from, int64_t first, int64_t count, int64_t width, uint8_t* to) {
  const int64_t bytes = width * static_cast<int64_t>(BytesOf(from.dtype));
  if (to == nullptr || bytes == 0) return;
  if (from.stride_bytes == bytes) {
    std::memcpy(to + first * bytes, from.Row(first), static_cast<size_t>(count * bytes));
    return;
  }
  for (int64_t r = first; r < first + count; ++r) std::memcpy(to + r * bytes, from.Row(r), static_cast<size_t>(bytes));
}

// Keys [begin, end) of one batch entry and head, stored alike. Row 0 of both sources is key `begin`.
// copy_*: where to put an untouched copy of the rows while they are in cache (row r at + r * width bytes), or null.
struct KeyRun {
  int64_t begin = 0, end = 0;
  RowSource key, value;
  uint8_t* key_copy = nullptr;
  uint8_t* value_copy = nullptr;
};

// Which keys a query token may see: [Low(i), High(i)).
struct Visibility {
  bool is_causal = false;
  int64_t left_window = -1, right_window = -1;  // -1: unbounded
  int64_t offset = 0;                           // key index of query token 0
  int64_t limit = 0;                            // keys from here on are not visible

  int64_t Low(int64_t token) const {
    if (left_window < 0) return 0;
    int64_t low;
    if (__builtin_sub_overflow(token + offset, left_window, &low)) return 0;
    return std::max<int64_t>(0, low);
  }
  int64_t High(int64_t token) const {
    int64_t high = limit;
    if (is_causal) high = std::min(high, token + offset + 1);
    int64_t right;
    if (right_window >= 0 && !__builtin_add_overflow(token + offset + 1, right_window, &right)) {
      high = std::min(high, right);
    }
    return std::max<int64_t>(0, high);
  }
};

// attn_mask of one batch entry, from the group's first head on. Strides in elements; 0 broadcasts.
struct MaskRows {
  const uint8_t* data = nullptr;  // null: no mask
  bool sum_in_float = false;      // score + bias has float's precision and range, also where the rest is in double
  DType dtype = DType::kUndefined;
  int64_t head_stride = 0, token_stride = 0, key_stride = 0;
  int64_t key_count = 0;  // keys from here on do not attend; unused when key_stride is 0 (rank 0)
};

// Running softmax of the item's rows: output (rows x padded Dv), max and sum (rows). Element type is the compute type.
struct PartialState {
  void* output = nullptr;
  void* max = nullptr;
  void* sum = nullptr;
};

// qk_matmul_output of the item's rows, all T keys wide; row of (head g, token i) at g * head_stride + i * token_stride.
struct ScoreOutput {
  uint8_t* data = nullptr;  // null: not wanted
  int64_t mode = 0;
  int64_t head_stride = 0, token_stride = 0;  // elements
  int64_t kv_len = 0;
};

struct AttentionItem {
  int64_t head_size = 0, v_head_size = 0;
  int64_t group = 1;                       // query heads that share the key/value head
  int64_t token_begin = 0, token_end = 0;  // query tokens; row r is token r / group, head r % group
  int64_t key_begin = 0, key_end = 0;      // multiples of kTileKeys, or T
  double scale = 1.0, softcap = 0.0;       // softcap 0 is off
  TileUnit tiles = TileUnit::kNone;        // what may be used of them
  Visibility visibility;
  MaskRows mask;
  const KeyRun* runs = nullptr;  // ascending, cover [key_begin, key_end)
  size_t run_count = 0;

  DType query_dtype = DType::kUndefined;                  // also of the output and the scores
  const uint8_t* query = nullptr;                         // token 0 of the group's first head
  int64_t query_head_stride = 0, query_token_stride = 0;  // elements

  uint8_t* output = nullptr;  // null when `partial` is wanted
  int64_t output_head_stride = 0, output_token_stride = 0;
  PartialState partial;
  ScoreOutput scores;

  int64_t rows() const { return (token_end - token_begin) * group; }
};

// One compiled instruction set and compute type (float or double).
struct AttentionKernels {
  // Computes the item: writes output, or partial; then scores.
  void (*run_item)(const AttentionItem& item);
  // Merges `count` partial states of the same rows, in order, and writes item.output.
  void (*merge)(const AttentionItem& item, const PartialState* partials, size_t count);
  // Columns of a partial state's output row: Dv rounded up to whole vectors.
  int64_t (*padded_v_head_size)(int64_t v_head_size);
  // Whether many rows of bfloat16 are multiplied as such, also without tiles.
  bool multiplies_bfloat16;
};

// The table of the chosen CPU target.
const AttentionKernels& AttentionKernelsF32();
const AttentionKernels& AttentionKernelsF64();

}  // namespace onnx_ai_rt
