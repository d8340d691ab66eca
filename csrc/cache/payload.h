// From the collected fields of one side of a block to a validated payload.
#pragma once

#include "cache/message_fields.h"
#include "cache/paged_cache.h"

namespace onnx_ai_rt {

// Throws InvalidArgument at `place`. Parameters and typed fields that need owned memory go into *view.
PayloadView ResolvePayload(const SideFields& fields, const CachePlace& place, PagedCacheView* view);

}  // namespace onnx_ai_rt
