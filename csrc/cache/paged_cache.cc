#include "cache/paged_cache.h"

#include <algorithm>

#include "cache/message_fields.h"
#include "cache/payload.h"
#include "cache/repeated_block.h"

namespace onnx_ai_rt {
namespace {

// Adds the block to the view, or says what is wrong with it. The view's tokens are where it has to start.
void AddBlock(const BlockFields& fields, const WireField& field, CachePlace* place, PagedCacheView* view) {
  BlockView& block = view->blocks.emplace_back();
  block.start = fields.start;
  block.length = fields.length;
  block.has_one_start = fields.start_count == 1;
  block.content = field.bytes;
  block.whole = field.whole;
  for (const Side side : {Side::kKey, Side::kValue}) {
    place->side = SideName(side);
    const int i = static_cast<int>(side);
    block.sides[i] = ResolvePayload(fields.sides[i], *place, view);
  }
  const StoredPayload& key = block.key().stored;
  const StoredPayload& value = block.value().stored;
  if (view->blocks.size() == 1) {
    view->batch = key.batch;
    view->heads = key.heads;
    view->widths[0] = key.width;
    view->widths[1] = value.width;
  }
  const auto expect = [&](const char* side, const char* what, int64_t expected, const char* where, int64_t got) {
    if (expected == got) return;
    place->side = side;
    place->Fail("expected ", what, " ", expected, " as in ", where, ", got ", got);
  };
  expect("key", "batch", view->batch, "block 0", key.batch);
  expect("key", "kv_heads", view->heads, "block 0", key.heads);
  expect("key", "width", view->widths[0], "block 0", key.width);
  expect("value", "batch", key.batch, "the key", value.batch);
  expect("value", "kv_heads", key.heads, "the key", value.heads);
  expect("value", "capacity", key.capacity, "the key", value.capacity);
  expect("value", "width", view->widths[1], "block 0", value.width);
  place->side = nullptr;
  if (block.length < 1 || block.length > key.capacity) {
    place->Fail("expected a length from 1 to the capacity ", key.capacity, ", got ", block.length);
  }
  if (block.start != view->tokens) {
    place->Fail("expected start ", view->tokens, view->blocks.size() == 1 ? "" : ", the end of the block before",
                ", got ", block.start);
  }
  if (__builtin_add_overflow(view->tokens, block.length, &view->tokens)) {
    place->Fail("expected fewer than 2^63 tokens, got start ", block.start, " and length ", block.length);
  }
}

// Headers of pages lie far from one another in memory, and each tells where the next one is. Those of a later page are
// asked for where they are if it has the size of this one.
void FetchHeaders(const BlockView& block, ByteSpan bytes) {
  constexpr size_t kPagesAhead = 4, kHeaderBytes = 192, kLine = 64, kFar = 4096;
  const size_t distance = kPagesAhead * block.whole.size;
  if (distance < kFar || distance >= static_cast<size_t>(bytes.end() - block.whole.end())) return;
  const PayloadView& key = block.key();
  const uint8_t* const headers[] = {block.whole.data, key.typed_field < 0 ? key.stored.data + key.byte_size : nullptr};
  for (const uint8_t* const header : headers) {
    if (header == nullptr) continue;
    for (size_t byte = 0; byte < kHeaderBytes; byte += kLine) __builtin_prefetch(header + distance + byte);
  }
}

// Blocks for which room is made ahead where all are as long as the first.
constexpr size_t kMostExpected = 4096;

bool IsBlock(const WireField& field) { return field.number == kBlocksField && field.type == WireType::kBytes; }

PagedCacheView Parse(ByteSpan bytes, const std::string& op_name, const std::string& input_name, bool is_run) {
  PagedCacheView view;
  view.bytes = bytes;
  CachePlace place{op_name, input_name};
  BlockFields fields;
  WireField field;
  int64_t blocks = 0;
  try {
    WireReader reader(bytes);
    while (reader.Next(&field)) {
      if (IsBlock(field)) {
        place.block = blocks++;
        if (!AddRepeatedBlock(field, &view)) {
          fields.Restart();
          ReadBlock(field.bytes, reader.depth(), &fields);
          if (is_run && place.block == 0 && fields.start > 0) view.tokens = fields.start;
          AddBlock(fields, field, &place, &view);
        }
        FetchHeaders(view.blocks.back(), bytes);
        if (blocks == 1) view.blocks.reserve(std::min<size_t>(bytes.size / field.whole.size, kMostExpected));
        place.block = -1;
      }
      field.number = 0;  // an error before the next tag is read is no block's
    }
  } catch (const WireError& error) {
    if (place.block < 0 && IsBlock(field)) place.block = blocks;  // a block that ends before its length says
    place.side = nullptr;
    place.Fail("expected a serialized PagedCacheProto, got ", error.reason, " at byte ", error.at - bytes.data, " of ",
               bytes.size);
  }
  return view;
}

}  // namespace

std::string CachePlace::Text() const {
  std::string text = op_name + ": input " + input_name;
  if (block >= 0) text += ", block " + std::to_string(block);
  if (side != nullptr) text += std::string(", ") + side;
  return text;
}

PagedCacheView ParsePagedCache(ByteSpan bytes, const std::string& op_name, const std::string& input_name) {
  return Parse(bytes, op_name, input_name, false);
}

PagedCacheView ParsePageRun(ByteSpan bytes, const std::string& op_name, const std::string& input_name) {
  return Parse(bytes, op_name, input_name, true);
}

StoredPayload Contiguous(const PagedCacheView& view, const PayloadView& payload, std::vector<uint8_t>* buffer) {
  StoredPayload stored = payload.stored;
  if (payload.typed_field < 0) return stored;
  const TypedField& typed = view.typed_fields[static_cast<size_t>(payload.typed_field)];
  buffer->clear();
  buffer->reserve(static_cast<size_t>(payload.byte_size));
  if (typed.dtype == DType::kFloat) {
    ForEachFloatPiece(typed.bodies, [&](ByteSpan piece) { buffer->insert(buffer->end(), piece.data, piece.end()); });
  } else {
    ForEachInt32(typed.bodies, [&](int32_t value) {
      buffer->push_back(static_cast<uint8_t>(value));
      buffer->push_back(static_cast<uint8_t>(value >> 8));
    });
  }
  stored.data = buffer->data();
  return stored;
}

}  // namespace onnx_ai_rt
