// onnx_ai_rt._core: the kernels without ONNX Runtime, for tests, benchmarks and the cache's friendly layer.
#include "python/bindings.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The kernels of onnx_ai_rt without ONNX Runtime.";
  onnx_ai_rt::BindCpuFeatures(m);
  onnx_ai_rt::BindAttention(m);
  onnx_ai_rt::BindCache(m);
  onnx_ai_rt::BindQuantize(m);
  onnx_ai_rt::BindPagedAttention(m);
  onnx_ai_rt::BindCeilings(m);
}
