// What multiplies tiles of bfloat16: nothing, the CPU, or an emulation of it.
#pragma once

#include <cstdint>
#include <string>

namespace onnx_ai_rt {

enum class TileUnit { kNone, kEmulated, kAmx };

// Why this process cannot use the CPU's tiles, as half a sentence; empty where it can. The first call asks the system
// for permission and compares a product of the CPU with the emulation's.
const std::string& WhyNoAmx();

// One product of tiles, c += a . b: rows of 16 pairs of bfloat16, 16 rows of 16 pairs, rows of 16 floats. Throws
// InvalidArgument where there is no such unit.
void MultiplyTile(TileUnit unit, const uint32_t* a, const uint32_t* b, float* c);

}  // namespace onnx_ai_rt
