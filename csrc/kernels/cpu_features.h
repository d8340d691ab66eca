// What this CPU has, which of the compiled instruction sets runs, and how to force another one.
#pragma once

#include <string>
#include <vector>

namespace onnx_ai_rt {

// Names of the instruction sets that the kernels are compiled for and that this CPU runs, best first, in Highway's
// spelling ("AVX3_ZEN4", "AVX2", "SSE2", "NEON").
std::vector<std::string> SupportedCpuTargets();

// The one that runs now. At load it is the best, or what the environment variable ONNX_AI_RT_CPU_TARGET names.
std::string ChosenCpuTarget();

// Forces a target by name; "" or "best" goes back to the best. Throws InvalidArgument for a name that is not
// supported here, listing those that are. Call it while no kernel runs.
void ChooseCpuTarget(const std::string& name);

}  // namespace onnx_ai_rt
