#include "kernels/key_tile.h"

#include <algorithm>

namespace onnx_ai_rt {
namespace {

// Rows that are read from memory once are fetched a tile ahead, and a fetched row must not push out one that waits: two
// tiles, with keys and values, are what the first-level cache holds.
constexpr int64_t kTileBytes = 32 << 10;
constexpr int64_t kLeastTileKeys = 16;

RowSource RowsFrom(RowSource rows, int64_t first) {
  if (rows.payload == nullptr) rows.data = rows.Row(first);
  return rows;
}

}  // namespace

KeyTile::KeyTile(const AttentionItem& item, Scratch& scratch) : item_(item), scratch_(scratch), keys_(kTileKeys) {
  if (item.rows() > kDirectRows || item.run_count == 0) return;
  const KeyRun& first = item.runs[0];
  const int64_t row_bytes =
      StoredBytes(first.key.dtype, item.head_size) + StoredBytes(first.value.dtype, item.v_head_size);
  while (keys_ > kLeastTileKeys && keys_ * row_bytes > kTileBytes) keys_ /= 2;
}

void KeyTile::MoveTo(int64_t key, int64_t end) {
  slices_.clear();
  while (run_ > 0 && item_.runs[run_].begin > key) --run_;
  while (run_ + 1 < item_.run_count && item_.runs[run_].end <= key) ++run_;
  for (size_t i = run_; i < item_.run_count && item_.runs[i].begin < end; ++i) {
    const KeyRun& run = item_.runs[i];
    const int64_t begin = std::max(key, run.begin);
    const int64_t count = std::min(end, run.end) - begin;
    if (count <= 0) continue;
    const int64_t first = begin - run.begin;
    slices_.push_back({&run, begin - key, count, first, RowsFrom(run.key, first), RowsFrom(run.value, first),
                       KeyAt(i, begin + keys_)});
  }
}

// Only the next run is looked at: a tile that spans more has short rows to wait for.
const uint8_t* KeyTile::KeyAt(size_t run, int64_t key) const {
  const size_t index = key < item_.runs[run].end ? run : run + 1;
  if (index == item_.run_count) return nullptr;
  const KeyRun& there = item_.runs[index];
  if (key < there.begin || key >= there.end || there.key.payload != nullptr) return nullptr;
  return there.key.Row(key - there.begin);
}

void KeyTile::Copy() const {
  for (const KeySlice& s : *this) {
    CopyRows(s.run->key, s.first_row, s.count, item_.head_size, s.run->key_copy);
    CopyRows(s.run->value, s.first_row, s.count, item_.v_head_size, s.run->value_copy);
  }
}

void KeyTile::Decode() {
  for (KeySlice& s : slices_) {
    DecodeRows(s, item_.head_size, decoded_keys_, s.key);
    DecodeRows(s, item_.v_head_size, decoded_values_, s.value);
  }
}

void KeyTile::DecodeRows(const KeySlice& slice, int64_t width, float*& buffer, RowSource& rows) {
  const StoredPayload* const payload = rows.payload;
  if (payload == nullptr) return;
  if (buffer == nullptr) buffer = scratch_.Take<float>(kTileKeys * width);
  float* const first = buffer + slice.begin * width;
  for (int64_t r = 0; r < slice.count; ++r) {
    DecodeRow(*payload, rows.batch, rows.head, slice.first_row + r, 0, width, first + r * width);
  }
  rows = RowSource();
  rows.data = reinterpret_cast<const uint8_t*>(first);
  rows.dtype = DType::kFloat;
  rows.stride_bytes = width * static_cast<int64_t>(sizeof(float));
}

}  // namespace onnx_ai_rt
