#include "kernels/scratch.h"

#include <algorithm>

namespace onnx_ai_rt {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kLeastChunk = 64 << 10;
// What a thread keeps, at most.
constexpr size_t kMostKept = 1 << 20;
#if defined(__SANITIZE_ADDRESS__)
// Each array by itself, so that an access beyond it is found.
constexpr bool kKeeps = false;
#else
constexpr bool kKeeps = true;
#endif

}  // namespace

Scratch& Scratch::OfThread() {
  thread_local Scratch scratch;
  return scratch;
}

void Scratch::Reset() {
  if (!kKeeps || chunks_.size() > 1 || (!chunks_.empty() && chunks_[0].size > kMostKept)) {
    chunks_.clear();
    next_size_ = std::min(total_, kMostKept);  // in one piece, the next time
  }
  used_ = total_ = 0;
}

uint8_t* Scratch::TakeBytes(size_t size) {
  size = std::max<size_t>(1, (size + kAlignment - 1) / kAlignment) * kAlignment;
  if (!kKeeps || chunks_.empty() || chunks_.back().size - used_ < size) {
    Chunk chunk;
    chunk.size = kKeeps ? std::max({size, kLeastChunk, next_size_}) : size;
    chunk.bytes = hwy::AllocateAligned<uint8_t>(chunk.size);
    if (!chunk.bytes) throw std::bad_alloc();
    chunks_.push_back(std::move(chunk));
    used_ = next_size_ = 0;
  }
  uint8_t* const start = chunks_.back().bytes.get() + used_;
  used_ += size;
  total_ += size;
  return start;
}

}  // namespace onnx_ai_rt
