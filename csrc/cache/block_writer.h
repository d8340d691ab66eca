// Writes a PagedCacheBlockProto: sizes first, then everything but the payloads' values, which the caller puts in place.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/wire_reader.h"
#include "kernels/quantize.h"

namespace onnx_ai_rt {

struct PayloadSpec {
  Encoding encoding;
  int64_t width = 0;
  bool has_name = false, has_doc = false;
  ByteSpan name, doc;
};

struct BlockSpec {
  int64_t start = 0, length = 0;
  int64_t batch = 0, heads = 0, capacity = 0;
  PayloadSpec sides[2];           // key, value
  std::vector<ByteSpan> unknown;  // whole fields, written last
};

struct BlockLayout {
  size_t bodies[2] = {0, 0};          // bytes of the payload messages
  size_t content = 0;                 // bytes of the block's message
  size_t size = 0;                    // with its tag and length in the cache
  size_t payload_offset[2] = {0, 0};  // of the values, from the block's tag
  int64_t payload_bytes[2] = {0, 0};
};

BlockLayout LayOutBlock(const BlockSpec& spec);

// Fills layout.size bytes at out, except the values at the payload offsets.
void WriteBlock(const BlockSpec& spec, const BlockLayout& layout, uint8_t* out);

}  // namespace onnx_ai_rt
