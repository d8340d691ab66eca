// The streaming kernel with compute type float, once for each CPU target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_f32.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {
const AttentionKernels* TableF32() { return KernelTable<float>(); }
}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnx_ai_rt {
HWY_EXPORT(TableF32);
const AttentionKernels& AttentionKernelsF32() { return *HWY_DYNAMIC_DISPATCH(TableF32)(); }
}  // namespace onnx_ai_rt
#endif
