// Rows that will be read soon are asked for a few cache lines at a time, between the work on others: a core has room
// for few outstanding requests, and a burst of more makes it wait.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"

namespace onnx_ai_rt {

// Fetches nothing, at no cost.
struct NoFetch {
  void SpreadOver(size_t) {}
  HWY_INLINE void Step() {}
};

class RowFetch {
 public:
  RowFetch() = default;
  // Rows of `row_bytes` each, `stride` apart. Addresses beyond them are harmless.
  RowFetch(const uint8_t* first, int64_t rows, int64_t row_bytes, int64_t stride) {
    if (first == nullptr || row_bytes <= 0) return;
    lines_ = rows * ((row_bytes + kLine - 1) / kLine);
    if (stride == row_bytes) row_bytes *= rows;
    at_ = first;
    end_ = first + row_bytes;
    row_bytes_ = row_bytes;
    gap_ = stride - row_bytes;
  }

  // All of it in the next `steps` steps.
  void SpreadOver(size_t steps) {
    lines_a_step_ = (lines_ + static_cast<int64_t>(steps) - 1) / static_cast<int64_t>(steps);
  }

  bool empty() const { return lines_ == 0; }
  void All() {
    SpreadOver(1);
    Step();
  }

  HWY_INLINE void Step() {
    for (int64_t i = lines_a_step_; i != 0; --i) {
      hwy::Prefetch(at_);
      at_ += kLine;
      if (HWY_UNLIKELY(at_ >= end_)) {
        at_ = end_ + gap_;
        end_ = at_ + row_bytes_;
      }
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;  // of the row
  int64_t row_bytes_ = 0, gap_ = 0;
  int64_t lines_ = 0, lines_a_step_ = 0;
};

}  // namespace onnx_ai_rt
