// Memory for the arrays of one item of work, kept for the next: a worker whose items need little asks the system for
// none, once it has seen the largest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "hwy/aligned_allocator.h"

namespace onnx_ai_rt {

class Scratch {
 public:
  // The calling thread's.
  static Scratch& OfThread();

  // Everything taken is free again.
  void Reset();

  // `count` elements, aligned for vectors, not initialised. Throws std::bad_alloc.
  template <typename T>
  T* Take(int64_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    if (count < 0 || static_cast<uint64_t>(count) > std::numeric_limits<size_t>::max() / 2 / sizeof(T)) {
      throw std::bad_alloc();
    }
    return reinterpret_cast<T*>(TakeBytes(static_cast<size_t>(count) * sizeof(T)));
  }

  template <typename T>
  T* TakeZeros(int64_t count) {
    T* const zeros = Take<T>(count);
    for (int64_t i = 0; i < count; ++i) zeros[i] = T{0};
    return zeros;
  }

  template <typename T, typename... Args>
  T* New(Args&&... args) {
    return new (Take<T>(1)) T(std::forward<Args>(args)...);
  }

 private:
  struct Chunk {
    hwy::AlignedFreeUniquePtr<uint8_t[]> bytes;
    size_t size = 0;
  };

  uint8_t* TakeBytes(size_t size);

  std::vector<Chunk> chunks_;
  size_t used_ = 0;   // of the last one
  size_t total_ = 0;  // bytes taken since Reset
  size_t next_size_ = 0;
};

}  // namespace onnx_ai_rt
