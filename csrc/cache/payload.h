// From the collected fields of one side of a block to a validated payload.
#pragma once

#include <cstdint>

#include "cache/message_fields.h"
#include "cache/paged_cache.h"

namespace onnx_ai_rt {

// Values of a payload, dimensions of 0 aside: so their bits still fit 63 bits, in every format.
inline constexpr int64_t kMaxPayloadValues = int64_t{1} << 57;

// Throws InvalidArgument at `place`. Parameters and typed fields that need owned memory go into *view.
PayloadView ResolvePayload(const SideFields& fields, const CachePlace& place, PagedCacheView* view);

}  // namespace onnx_ai_rt
