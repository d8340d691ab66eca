// Serialized PagedCacheProto -> validated views into the same bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "cache/wire_reader.h"
#include "kernels/error.h"
#include "kernels/quantize.h"

namespace onnx_ai_rt {

enum class Side { kKey = 0, kValue = 1 };

inline const char* SideName(Side side) { return side == Side::kKey ? "key" : "value"; }

// Where a message about a cache points: operator, input, block, side.
struct CachePlace {
  std::string op_name;     // "ai.rt::QuantizePagedCache"
  std::string input_name;  // "cache"
  int64_t block = -1;
  const char* side = nullptr;

  std::string Text() const;

  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const {
    onnx_ai_rt::Fail(Text(), ": ", parts...);
  }
};

// Values that lie in a typed field of a dense TensorProto, in pieces.
struct TypedField {
  std::vector<ByteSpan> bodies;  // the pieces of the TensorProto
  DType dtype = DType::kUndefined;
};

struct PayloadView {
  StoredPayload stored;            // data is null where the values lie in a typed field that has to be gathered
  int64_t byte_size = 0;           // of the stored values, gathered or not
  const uint8_t* scale = nullptr;  // of codes with one scale: its four bytes, where they lie
  int64_t typed_field = -1;        // index into PagedCacheView::typed_fields
  bool has_name = false, has_doc = false;
  ByteSpan name, doc;
};

struct BlockView {
  int64_t start = 0, length = 0;
  PayloadView sides[2];        // by Side
  ByteSpan content;            // the block's message
  ByteSpan whole;              // with its tag and length in the cache: copied as it is, it is a block of another cache
  bool has_one_start = false;  // the field `start` is there once

  const PayloadView& key() const { return sides[0]; }
  const PayloadView& value() const { return sides[1]; }
  int64_t capacity() const { return sides[0].stored.capacity; }
};

// Points into the parsed bytes, which must stay, and owns the few things that are not there in one piece.
struct PagedCacheView {
  ByteSpan bytes;
  std::vector<BlockView> blocks;
  int64_t tokens = 0;  // of all blocks
  // Of all blocks, when there is one.
  int64_t batch = 0, heads = 0, widths[2] = {0, 0};
  std::vector<TypedField> typed_fields;
  std::deque<std::vector<uint8_t>> gathered_parameters;
};

// Reads headers and parameters, and nothing of a payload in raw_data but its last byte; typed fields are walked once.
// Throws InvalidArgument, with a sentence that begins with the operator and the input.
PagedCacheView ParsePagedCache(ByteSpan bytes, const std::string& op_name, const std::string& input_name);

// The same for a run of pages out of a cache, which begins at whatever token its first page says; `tokens` is where the
// last one ends.
PagedCacheView ParsePageRun(ByteSpan bytes, const std::string& op_name, const std::string& input_name);

// The payload with its values in one piece: as it is, or gathered into *buffer.
StoredPayload Contiguous(const PagedCacheView& view, const PayloadView& payload, std::vector<uint8_t>* buffer);

}  // namespace onnx_ai_rt
