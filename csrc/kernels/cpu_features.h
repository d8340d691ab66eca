// What this CPU has, which of the compiled instruction sets runs, and how to force another one.
//
// AMX is the best of Highway's and the CPU's tiles; AMX_EMULATED the same with emulated tiles: slow, for tests, and
// never chosen by itself.
#pragma once

#include <string>
#include <vector>

#include "kernels/tile_unit.h"

namespace onnx_ai_rt {

// Names of the instruction sets that the kernels are compiled for and that this CPU runs, best first, in Highway's
// spelling ("AVX3_ZEN4", "AVX2", "SSE2", "NEON"); AMX_EMULATED last.
std::vector<std::string> SupportedCpuTargets();

// The one that runs now. At load it is the best, or what the environment variable ONNX_AI_RT_CPU_TARGET names.
std::string ChosenCpuTarget();

// What it multiplies tiles with.
TileUnit ChosenTiles();

// Forces a target by name; "" or "best" goes back to the best. Throws InvalidArgument for a name that is not
// supported here, listing those that are. Call it while no kernel runs.
void ChooseCpuTarget(const std::string& name);

}  // namespace onnx_ai_rt
