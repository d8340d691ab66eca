// A block whose bytes are those of the one before, but for its start and its payloads' scales and values: its headers
// need not be read again. Caches are mostly made of such blocks, and a decoding step reads the headers of all of them.
#pragma once

#include "cache/paged_cache.h"

namespace onnx_ai_rt {

// True where the block `field` repeats the view's last one; then it was added to the view. Costs a comparison of the
// headers' bytes. False where it has to be read: also for one with something wrong.
bool AddRepeatedBlock(const WireField& field, PagedCacheView* view);

}  // namespace onnx_ai_rt
