#include "kernels/ceilings.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ceilings.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Enough independent sums to hide a latency of 6 cycles at two a cycle; they fit 16 registers.
constexpr size_t kSums = 12;
constexpr int64_t kRepeats = 64;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

// Keeps the sums from being left out.
HWY_NOINLINE void Consume(const VF (&sums)[kSums]) {
  VF total = sums[0];
  for (size_t i = 1; i < kSums; ++i) total = hn::Add(total, sums[i]);
  [[maybe_unused]] volatile float sink = hn::ReduceSum(DF(), total);
}

double Float(int64_t rounds) {
  const DF d;
  // One in all lanes, in a way that the compiler cannot know.
  volatile float one = 1.0f;
  const VF a = hn::Set(d, one * 0.5f), b = hn::Set(d, one);
  VF sums[kSums];
  for (VF& sum : sums) sum = b;
  for (int64_t r = 0; r < rounds * kRepeats; ++r) {
    HWY_UNROLL(12)
    for (size_t i = 0; i < kSums; ++i) sums[i] = hn::MulAdd(sums[i], a, b);
  }
  Consume(sums);
  return 2.0 * static_cast<double>(rounds * kRepeats) * static_cast<double>(kSums * hn::Lanes(d));
}

double BFloat16(int64_t rounds) {
  const DF d;
  const hn::Repartition<hwy::bfloat16_t, DF> d16;
  volatile float one = 1.0f;
  const auto a = hn::Set(d16, hwy::BF16FromF32(one)), b = hn::Set(d16, hwy::BF16FromF32(one * 0.5f));
  VF sums[kSums];
  for (VF& sum : sums) sum = hn::Zero(d);
  VF others = hn::Zero(d);  // where the emulation adds the other half of the lanes
  for (int64_t r = 0; r < rounds * kRepeats; ++r) {
    HWY_UNROLL(12)
    for (size_t i = 0; i < kSums; ++i) sums[i] = hn::ReorderWidenMulAccumulate(d, a, b, sums[i], others);
  }
  sums[0] = hn::Add(sums[0], others);
  Consume(sums);
  return 2.0 * static_cast<double>(rounds * kRepeats) * static_cast<double>(kSums * hn::Lanes(d16));
}

uint64_t Read(const uint8_t* data, size_t size) {
  const hn::ScalableTag<uint64_t> d;
  const hn::ScalableTag<uint8_t> d8;
  const size_t step = 8 * hn::Lanes(d8);
  constexpr size_t kAhead = 4096;  // bytes that a prefetch runs ahead
  hn::Vec<decltype(d)> sums[8];
  for (auto& sum : sums) sum = hn::Zero(d);
  size_t i = 0;
  for (; i + step <= size; i += step) {
    for (size_t line = 0; line < step; line += 64) hwy::Prefetch(data + i + line + kAhead);
    HWY_UNROLL(8)
    for (size_t j = 0; j < 8; ++j) {
      sums[j] = hn::Xor(sums[j], hn::BitCast(d, hn::LoadU(d8, data + i + j * hn::Lanes(d8))));
    }
  }
  for (size_t j = 1; j < 8; ++j) sums[0] = hn::Xor(sums[0], sums[j]);
  uint64_t checksum = hn::ReduceSum(d, sums[0]);
  for (; i < size; ++i) checksum += data[i];
  return checksum;
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnx_ai_rt {
HWY_EXPORT(Float);
HWY_EXPORT(BFloat16);
HWY_EXPORT(Read);

double MultiplyAddFloat(int64_t rounds) { return HWY_DYNAMIC_DISPATCH(Float)(rounds); }
double MultiplyAddBFloat16(int64_t rounds) { return HWY_DYNAMIC_DISPATCH(BFloat16)(rounds); }
uint64_t ReadBytes(const uint8_t* data, size_t size) { return HWY_DYNAMIC_DISPATCH(Read)(data, size); }
}  // namespace onnx_ai_rt
#endif
