// Measured limits of this CPU, for benchmarks.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>

#include "kernels/ceilings.h"
#include "kernels/error.h"
#include "python/bindings.h"
#include "python/buffers.h"

namespace py = pybind11;

namespace onnx_ai_rt {
namespace {

// Seconds of body(thread) on all threads at once.
template <typename F>
double Seconds(int threads, const F& body) {
  if (threads < 1) Fail("expected at least one thread, got ", threads);
  const py::gil_scoped_release release;
  ThreadExecutor executor(threads);
  const auto start = std::chrono::steady_clock::now();
  executor.ParallelFor(static_cast<size_t>(threads), body);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double ArithmeticRate(const std::string& type, int64_t rounds, int threads) {
  if (type != "float32" && type != "bfloat16") Fail("expected float32 or bfloat16, got ", type);
  const auto run = type == "float32" ? MultiplyAddFloat : MultiplyAddBFloat16;
  const double operations = run(1);
  const double seconds = Seconds(threads, [&](size_t) { run(rounds); });
  return operations * static_cast<double>(rounds) * threads / seconds;
}

double ReadingSeconds(const py::object& data, int64_t passes, int threads) {
  const PyBytes bytes(data, "data");
  const size_t part = bytes.size() / static_cast<size_t>(std::max(threads, 1));
  std::atomic<uint64_t> checksum{0};
  const double seconds = Seconds(threads, [&](size_t thread) {
    uint64_t sum = 0;
    for (int64_t pass = 0; pass < passes; ++pass) sum += ReadBytes(bytes.data() + thread * part, part);
    checksum += sum;
  });
  return seconds / static_cast<double>(passes);
}

}  // namespace

void BindCeilings(py::module_& m) {
  m.def("arithmetic_rate", &ArithmeticRate, py::arg("type"), py::arg("rounds"), py::arg("threads") = 1,
        R"(Operations a second of independent multiply-adds in registers, on the chosen CPU target.

type: float32, or bfloat16 for bfloat16 factors with float32 sums. rounds: how long; 10000 take about a millisecond.)");
  m.def("reading_seconds", &ReadingSeconds, py::arg("data"), py::arg("passes") = 1, py::arg("threads") = 1,
        R"(Seconds of one pass of reading a contiguous buffer in ascending order, a part of it on each thread.)");
}

}  // namespace onnx_ai_rt
