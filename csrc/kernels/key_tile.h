// The tile of keys that is being processed: which stored rows it is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention_item.h"
#include "kernels/scratch.h"

namespace onnx_ai_rt {

// Keys [begin, begin + count) of the tile, counted from its first key: rows first_row... of a run. key and value are
// these rows alone, row 0 the first.
struct KeySlice {
  const KeyRun* run;
  int64_t begin, count, first_row;
  RowSource key, value;
  const uint8_t* next_keys;  // the key of the next tile that stands where the first one stands here; null: none
};

class KeyTile {
 public:
  KeyTile(const AttentionItem& item, Scratch& scratch);

  // How many keys a tile has: kTileKeys, or a half or a quarter of them where few query rows meet long rows of keys.
  int64_t keys() const { return keys_; }

  // Finds the slices of keys [key, end), end <= key + keys(). Moves forward cost little.
  void MoveTo(int64_t key, int64_t end);
  // Writes the copies that the runs ask for.
  void Copy() const;
  // Rows that cannot be read in place become floats, in memory of the tile's own. Throws std::bad_alloc.
  void Decode();

  const KeySlice* begin() const { return slices_.data(); }
  const KeySlice* end() const { return slices_.data() + slices_.size(); }
  size_t size() const { return slices_.size(); }

 private:
  void DecodeRows(const KeySlice& slice, int64_t width, float*& buffer, RowSource& rows);

  const uint8_t* KeyAt(size_t run, int64_t key) const;

  const AttentionItem& item_;
  Scratch& scratch_;
  int64_t keys_;
  size_t run_ = 0;
  std::vector<KeySlice> slices_;
  float* decoded_keys_ = nullptr;
  float* decoded_values_ = nullptr;
};

}  // namespace onnx_ai_rt
