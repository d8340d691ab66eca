#include "kernels/cpu_features.h"

#include <bit>
#include <cstdlib>

#include "hwy/highway.h"
#include "kernels/error.h"

namespace onnx_ai_rt {
namespace {

// Highway's own detection, before any override.
int64_t DetectedTargets() {
  static const int64_t detected = [] {
    hwy::SetSupportedTargetsForTest(0);
    return hwy::SupportedTargets() & HWY_TARGETS;
  }();
  return detected;
}

int64_t chosen_target = 0;

void Choose(int64_t target) {
  DetectedTargets();
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(target);
  chosen_target = target;
}

// Lower bits are better targets.
int64_t BestTarget() { return DetectedTargets() & -DetectedTargets(); }

// The environment is read when the library is loaded, before any kernel can run. A name that is not supported here
// leaves the best target: a static initializer has nobody to tell.
const bool environment_read = [] {
  Choose(BestTarget());
  const char* name = std::getenv("ONNX_AI_RT_CPU_TARGET");
  if (name != nullptr) {
    try {
      ChooseCpuTarget(name);
    } catch (const InvalidArgument&) {
      return false;
    }
  }
  return true;
}();

}  // namespace

std::vector<std::string> SupportedCpuTargets() {
  std::vector<std::string> names;
  for (int64_t rest = DetectedTargets(); rest != 0; rest &= rest - 1) names.push_back(hwy::TargetName(rest & -rest));
  return names;
}

std::string ChosenCpuTarget() { return hwy::TargetName(chosen_target); }

void ChooseCpuTarget(const std::string& name) {
  if (name.empty() || name == "best") return Choose(BestTarget());
  std::string known;
  for (int64_t rest = DetectedTargets(); rest != 0; rest &= rest - 1) {
    const int64_t target = rest & -rest;
    if (name == hwy::TargetName(target)) return Choose(target);
    known += known.empty() ? "" : ", ";
    known += hwy::TargetName(target);
  }
  Fail("CPU target: expected one of ", known, ", got '", name, "'");
}

}  // namespace onnx_ai_rt
