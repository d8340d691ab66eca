#include "cache/repeated_block.h"

#include <cstring>

#include "cache/message_fields.h"

namespace onnx_ai_rt {
namespace {

// The high bits of the last byte, where codes do not fill it.
bool SpareBitsAreZero(const StoredPayload& stored, const uint8_t* values) {
  const int64_t count = stored.Values();
  const int used = static_cast<int>(count * BitsOf(stored.dtype) % 8);
  return used == 0 || values[StoredBytes(stored.dtype, count) - 1] >> used == 0;
}

// The number that a block's field `start` holds, where that is its first field; else false.
bool ReadStart(ByteSpan content, int64_t* start, size_t* size) {
  WireReader reader(content, kWireDepth - 1);
  WireField field;
  if (!reader.Next(&field) || field.number != kStartField || field.type != WireType::kVarint) return false;
  *start = static_cast<int64_t>(field.varint);
  *size = field.whole.size;
  return true;
}

}  // namespace

bool AddRepeatedBlock(const WireField& field, PagedCacheView* view) {
  if (view->blocks.empty()) return false;
  const BlockView& last = view->blocks.back();
  int64_t start, last_start, tokens;
  size_t start_size, last_start_size;
  if (!last.has_one_start || !ReadStart(last.content, &last_start, &last_start_size) ||
      !ReadStart(field.bytes, &start, &start_size) || start != view->tokens ||
      field.bytes.size - start_size != last.content.size - last_start_size ||
      __builtin_add_overflow(start, last.length, &tokens)) {
    return false;
  }
  // What follows the start has the same size in both: compare all of it but the values.
  const ptrdiff_t moved = field.bytes.end() - last.content.end();
  const uint8_t* at = last.content.data + last_start_size;
  const auto same_until = [&](const uint8_t* end) {
    return std::memcmp(at, at + moved, static_cast<size_t>(end - at)) == 0;
  };
  for (const PayloadView& payload : last.sides) {
    const uint8_t* values = payload.stored.data;
    if (payload.typed_field >= 0 || payload.byte_size == 0 || values < at) return false;
    if (payload.scale != nullptr) {
      if (payload.scale < at || payload.scale > values - sizeof(float) || !same_until(payload.scale)) return false;
      if (!IsScale(LoadFloat(payload.scale + moved))) return false;
      at = payload.scale + sizeof(float);
    }
    if (!same_until(values) || !SpareBitsAreZero(payload.stored, values + moved)) return false;
    at = values + payload.byte_size;
  }
  if (!same_until(last.content.end())) return false;

  BlockView block = last;
  block.start = start;
  block.content = field.bytes;
  block.whole = field.whole;
  for (PayloadView& payload : block.sides) {
    payload.stored.data += moved;
    if (payload.scale == nullptr) continue;
    payload.scale += moved;
    payload.stored.affine.first_scale = LoadFloat(payload.scale);
  }
  view->blocks.push_back(block);
  view->tokens = tokens;
  return true;
}

}  // namespace onnx_ai_rt
