// How many numbers of bfloat16 a value is the exact sum of, which is how often tile products have to be done.
#pragma once

#include <algorithm>

#include "kernels/attention_item.h"

namespace onnx_ai_rt {

// 11 bits of float16 are 8 and 3. 0: it is not done with bfloat16.
inline int BFloat16Parts(DType dtype) {
  if (dtype == DType::kBFloat16 || IsCodeType(dtype)) return 1;
  return dtype == DType::kHalf ? 2 : 0;
}

// Rows that have to be decoded first are floats.
inline int BFloat16Parts(const RowSource& rows) { return rows.payload == nullptr ? BFloat16Parts(rows.dtype) : 0; }

// Of values some of which have a and some b.
inline int MostParts(int a, int b) { return a == 0 || b == 0 ? 0 : std::max(a, b); }

inline int BFloat16Parts(const KeyRun* runs, size_t count) {
  int parts = 1;
  for (const KeyRun* run = runs; run != runs + count; ++run) {
    parts = MostParts(parts, MostParts(BFloat16Parts(run->key), BFloat16Parts(run->value)));
  }
  return parts;
}

}  // namespace onnx_ai_rt
