#include "kernels/cpu_features.h"

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

// Lower bits are better targets.
int64_t BestTarget() { return DetectedTargets() & -DetectedTargets(); }

struct Target {
  std::string name;
  int64_t vectors;  // Highway's bit
  TileUnit tiles;
};

// Best first, but for the emulation.
const std::vector<Target>& KnownTargets() {
  static const std::vector<Target> known = [] {
    std::vector<Target> targets;
#if HWY_ARCH_X86_64
    if (BestTarget() <= HWY_AVX3_ZEN4 && WhyNoAmx().empty()) targets.push_back({"AMX", BestTarget(), TileUnit::kAmx});
#endif
    for (int64_t rest = DetectedTargets(); rest != 0; rest &= rest - 1) {
      targets.push_back({hwy::TargetName(rest & -rest), rest & -rest, TileUnit::kNone});
    }
#if HWY_ARCH_X86_64
    targets.push_back({"AMX_EMULATED", BestTarget(), TileUnit::kEmulated});
#endif
    return targets;
  }();
  return known;
}

const Target* chosen = nullptr;

void Choose(const Target& target) {
  hwy::SetSupportedTargetsForTest(target.vectors);
  hwy::GetChosenTarget().Update(target.vectors);
  chosen = &target;
}

// The environment is read when the library is loaded, before any kernel can run. A name that is not supported here
// leaves the best target: a static initializer has nobody to tell.
const bool environment_read = [] {
  Choose(KnownTargets().front());
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
  for (const Target& target : KnownTargets()) names.push_back(target.name);
  return names;
}

std::string ChosenCpuTarget() { return chosen->name; }

TileUnit ChosenTiles() { return chosen->tiles; }

void ChooseCpuTarget(const std::string& name) {
  if (name.empty() || name == "best") return Choose(KnownTargets().front());
  std::string known;
  for (const Target& target : KnownTargets()) {
    if (name == target.name) return Choose(target);
    known += (known.empty() ? "" : ", ") + target.name;
  }
  const std::string why = name == "AMX" && !WhyNoAmx().empty() ? ": " + WhyNoAmx() : "";
  Fail("CPU target: expected one of ", known, ", got '", name, "'", why);
}

}  // namespace onnx_ai_rt
