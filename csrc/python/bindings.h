// The binding functions of _core, one file each, and what they share.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "kernels/executor.h"
#include "kernels/tensor_view.h"

namespace onnx_ai_rt {

void BindCpuFeatures(pybind11::module_& m);
void BindAttention(pybind11::module_& m);
void BindCache(pybind11::module_& m);
void BindQuantize(pybind11::module_& m);
void BindPagedAttention(pybind11::module_& m);
void BindCeilings(pybind11::module_& m);

// numpy's and ml_dtypes' element types by name; throws InvalidArgument (ValueError in Python) for others.
DType DTypeOf(const pybind11::array& array);
pybind11::dtype NumpyDType(DType dtype);

// View of a C-contiguous array; `name` is for the message where it is not.
TensorView ViewOf(const pybind11::array& array, const std::string& name);

// Runs on `threads` threads that live as long as one call of Run. For tests and benchmarks; a session lends its own.
class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(int threads) : threads_(threads) {}
  void Run(size_t count, Body body, void* context) override;

 private:
  int threads_;
};

}  // namespace onnx_ai_rt
