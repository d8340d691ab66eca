#include "python/bindings.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "kernels/cpu_features.h"
#include "kernels/error.h"

namespace py = pybind11;

namespace onnx_ai_rt {
namespace {

struct NamedType {
  const char* name;
  DType dtype;
};

constexpr NamedType kTypes[] = {
    {"float32", DType::kFloat}, {"float16", DType::kHalf}, {"bfloat16", DType::kBFloat16}, {"float64", DType::kDouble},
    {"bool", DType::kBool},     {"int8", DType::kInt8},    {"uint8", DType::kUInt8},       {"int16", DType::kInt16},
    {"uint16", DType::kUInt16}, {"int32", DType::kInt32},  {"uint32", DType::kUInt32},     {"int64", DType::kInt64},
    {"uint64", DType::kUInt64},
};

using Pairs = py::array_t<uint32_t, py::array::c_style>;
using Floats = py::array_t<float, py::array::c_style>;

Floats MultiplyTileOfArrays(const Pairs& a, const Pairs& b, const Floats& c, bool emulated) {
  if (a.size() != 256 || b.size() != 256 || c.size() != 256) Fail("expected tiles of 256 elements");
  Floats result({16, 16});
  std::copy_n(c.data(), 256, result.mutable_data());
  MultiplyTile(emulated ? TileUnit::kEmulated : TileUnit::kAmx, a.data(), b.data(), result.mutable_data());
  return result;
}

}  // namespace

DType DTypeOf(const py::array& array) {
  const auto name = array.dtype().attr("name").cast<std::string>();
  for (const NamedType& type : kTypes) {
    if (name == type.name) return type.dtype;
  }
  Fail("numpy array: expected a float, bool or integer type of 8 to 64 bits, got ", name);
}

py::dtype NumpyDType(DType dtype) {
  if (dtype == DType::kBFloat16) return py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16"));
  for (const NamedType& type : kTypes) {
    if (dtype == type.dtype) return py::dtype(type.name);
  }
  Fail("numpy has no type for ", DTypeName(dtype));
}

TensorView ViewOf(const py::array& array, const std::string& name) {
  if ((array.flags() & py::array::c_style) == 0) Fail("array ", name, ": expected C-contiguous memory, got strides");
  return {array.data(), DTypeOf(array), Shape(array.shape(), array.shape() + array.ndim()), true};
}

void ThreadExecutor::Run(size_t count, Body body, void* context) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) body(context, i);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads_; ++t) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
}

void BindCpuFeatures(py::module_& m) {
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const InvalidArgument& error) {
      py::set_error(PyExc_ValueError, error.what());
    }
  });
  m.def("supported_cpu_targets", &SupportedCpuTargets,
        "Instruction sets that the kernels are compiled for and this CPU runs, best first.");
  m.def("chosen_cpu_target", &ChosenCpuTarget, "The instruction set that runs now.");
  m.def("choose_cpu_target", &ChooseCpuTarget, py::arg("name"),
        "Forces an instruction set by name; '' goes back to the best. ValueError for one that cannot run here.");
  m.def("multiply_tile", &MultiplyTileOfArrays, py::arg("a"), py::arg("b"), py::arg("c"), py::arg("emulated") = true,
        R"(c + a . b by one instruction of a tile unit, or by its emulation; for tests.

a, b: 16 x 16 pairs of bfloat16 as uint32, the first of a pair in the lower bits. c: 16 x 16 of float32.)");
}

}  // namespace onnx_ai_rt
