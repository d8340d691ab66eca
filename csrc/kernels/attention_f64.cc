// The streaming kernel with compute type double, once for each CPU target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_f64.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {
const AttentionKernels* TableF64() { return KernelTable<double>(); }
}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnx_ai_rt {
HWY_EXPORT(TableF64);
const AttentionKernels& AttentionKernelsF64() { return *HWY_DYNAMIC_DISPATCH(TableF64)(); }
}  // namespace onnx_ai_rt
#endif
