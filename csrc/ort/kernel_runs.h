// How often each operator, path and CPU target ran in this process. Thread-safe; counting takes no lock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onnx_ai_rt {

struct KernelRun {
  std::string op;
  std::string path;
  std::string target;
  int64_t count = 0;
};

void CountKernelRun(const std::string& op, const std::string& path, const std::string& target);

// Those that ran since the last reset, in the order of their first run.
std::vector<KernelRun> KernelRuns();
void ResetKernelRuns();

}  // namespace onnx_ai_rt
