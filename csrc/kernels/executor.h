// A type-erased parallel-for. It owns no threads: the caller lends its own.
#pragma once

#include <cstddef>
#include <exception>
#include <mutex>

namespace onnx_ai_rt {

// Runs body(i) once for each i in [0, count), in any order and on any thread, and returns when all are done.
// The kernels split work by the problem alone, so that the result does not depend on how many threads there are.
class Executor {
 public:
  using Body = void (*)(void* context, size_t index);

  virtual ~Executor() = default;
  virtual void Run(size_t count, Body body, void* context) = 0;

  // body: callable as void(size_t). The first exception that it throws, if any, is rethrown here after all calls.
  template <typename F>
  void ParallelFor(size_t count, const F& body) {
    if (count == 1) return body(size_t{0});
    struct State {
      const F* body;
      std::mutex mutex;
      std::exception_ptr error;
    } state{&body, {}, nullptr};
    Run(
        count,
        [](void* context, size_t index) {
          auto* s = static_cast<State*>(context);
          try {
            (*s->body)(index);
          } catch (...) {
            const std::lock_guard<std::mutex> lock(s->mutex);
            if (!s->error) s->error = std::current_exception();
          }
        },
        &state);
    if (state.error) std::rethrow_exception(state.error);
  }
};

// Everything on the calling thread, in order.
class SerialExecutor final : public Executor {
 public:
  void Run(size_t count, Body body, void* context) override {
    for (size_t i = 0; i < count; ++i) body(context, i);
  }
};

}  // namespace onnx_ai_rt
