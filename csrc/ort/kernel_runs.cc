#include "ort/kernel_runs.h"

#include <algorithm>
#include <atomic>
#include <mutex>

namespace onnx_ai_rt {
namespace {

// Counters form a list that only grows, by a handful of entries in a process's life: readers need no lock, and a run
// costs a few string comparisons and no allocation.
struct Counter {
  std::string op, path, target;
  std::atomic<int64_t> count{0};
  Counter* next = nullptr;

  bool Is(const std::string& op_wanted, const std::string& path_wanted, const std::string& target_wanted) const {
    return path == path_wanted && op == op_wanted && target == target_wanted;
  }
};

std::atomic<Counter*> g_newest{nullptr};
std::mutex g_grow;

Counter* Find(const std::string& op, const std::string& path, const std::string& target) {
  Counter* counter = g_newest.load(std::memory_order_acquire);
  while (counter != nullptr && !counter->Is(op, path, target)) counter = counter->next;
  return counter;
}

}  // namespace

void CountKernelRun(const std::string& op, const std::string& path, const std::string& target) {
  Counter* counter = Find(op, path, target);
  if (counter == nullptr) {
    const std::lock_guard<std::mutex> lock(g_grow);
    counter = Find(op, path, target);
    if (counter == nullptr) {
      // Never freed: sessions may still run while static objects are destroyed.
      counter = new Counter{op, path, target, 0, g_newest.load(std::memory_order_relaxed)};
      g_newest.store(counter, std::memory_order_release);
    }
  }
  counter->count.fetch_add(1, std::memory_order_relaxed);
}

std::vector<KernelRun> KernelRuns() {
  std::vector<KernelRun> runs;
  for (Counter* c = g_newest.load(std::memory_order_acquire); c != nullptr; c = c->next) {
    const int64_t count = c->count.load(std::memory_order_relaxed);
    if (count != 0) runs.push_back({c->op, c->path, c->target, count});
  }
  std::reverse(runs.begin(), runs.end());
  return runs;
}

void ResetKernelRuns() {
  for (Counter* c = g_newest.load(std::memory_order_acquire); c != nullptr; c = c->next) {
    c->count.store(0, std::memory_order_relaxed);
  }
}

}  // namespace onnx_ai_rt
