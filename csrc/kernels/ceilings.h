// What one core does at most, as this build can reach it: the limits that benchmarks are measured against.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onnx_ai_rt {

// Independent multiply-adds in registers on the chosen CPU target, `rounds` times a fixed block of them. Returns how
// many operations that was, a multiply-add being two.
double MultiplyAddFloat(int64_t rounds);

// The same with bfloat16 factors and float sums; emulated, and then slower than float, where the target has no
// instruction.
double MultiplyAddBFloat16(int64_t rounds);

// Reads every byte once, in ascending order, and returns a checksum that keeps the compiler from leaving it out.
uint64_t ReadBytes(const uint8_t* data, size_t size);

}  // namespace onnx_ai_rt
