// ai.rt::PagedAttention on numpy arrays, and the merging of pages that a decode loop does.
#include <map>
#include <optional>
#include <tuple>

#include "cache/encoding_inputs.h"
#include "cache/merge_pages.h"
#include "cache/paged_step.h"
#include "kernels/error.h"
#include "python/bindings.h"
#include "python/buffers.h"

namespace py = pybind11;

namespace onnx_ai_rt {
namespace {

constexpr const char* kOpName = "ai.rt::PagedAttention";

// scale, onnx.TensorProto.DataType, code
using PyEncoding = std::optional<std::tuple<float, int, int>>;

PagedStepAttributes ReadAttributes(const py::dict& attributes) {
  PagedStepAttributes a;
  a.attention.is_causal = true;
  for (const auto& [key, value] : attributes) {
    const auto name = key.cast<std::string>();
    if (name == "block_size")
      a.block_size = value.cast<int64_t>();
    else if (name == "max_tokens")
      a.max_tokens = value.cast<int64_t>();
    else if (name == "is_causal")
      a.attention.is_causal = value.cast<int64_t>() != 0;
    else if (name == "left_window_size")
      a.attention.left_window_size = value.cast<int64_t>();
    else if (name == "scale")
      a.attention.scale = value.cast<float>();
    else if (name == "softcap")
      a.attention.softcap = value.cast<float>();
    else
      Fail(kOpName, ": expected one of the operator's attributes, got '", name, "'");
  }
  return a;
}

std::optional<Encoding> ReadPyEncoding(const char* side, const PyEncoding& given) {
  if (!given) return std::nullopt;
  const auto& [scale, data_type, zero_point] = *given;
  return MakeEncoding(kOpName, side, scale, static_cast<DType>(data_type), zero_point);
}

py::dict PagedAttention(const py::object& cache, const py::array& q, const py::array& k, const py::array& v,
                        const py::dict& attributes, const PyEncoding& key_encoding, const PyEncoding& value_encoding,
                        const std::vector<std::string>& request, int threads) {
  const PyBytes past(cache, std::string(kOpName) + ": input past");
  PagedStepInputs inputs{ViewOf(q, "Q"), ViewOf(k, "K"), ViewOf(v, "V"), past.span(), {}};
  inputs.encodings[0] = ReadPyEncoding("key", key_encoding);
  inputs.encodings[1] = ReadPyEncoding("value", value_encoding);
  bool wants_present = false, wants_appended = false;
  for (const std::string& name : request) {
    if (name == "present")
      wants_present = true;
    else if (name == "appended")
      wants_appended = true;
    else if (name != "Y")
      Fail(kOpName, ": expected one of the operator's outputs, got '", name, "'");
  }
  const PagedStepAttributes read = ReadAttributes(attributes);
  ThreadExecutor executor(threads);
  PagedStepPlan plan;
  {
    const py::gil_scoped_release release;
    plan = PlanPagedStep(kOpName, read, inputs, executor);
  }
  py::dict results;
  PagedStepOutputs outputs;
  py::array y(NumpyDType(inputs.query.dtype), plan.attention.output_shape);
  outputs.output = y.mutable_data();
  results["Y"] = y;
  const auto add = [&](const char* name, size_t size) {
    py::array_t<uint8_t> bytes(static_cast<py::ssize_t>(size));
    results[name] = bytes;
    return bytes.mutable_data();
  };
  if (wants_present) outputs.present = add("present", plan.present_size());
  if (wants_appended) outputs.appended = add("appended", plan.append.size);
  const py::gil_scoped_release release;
  RunPagedStep(plan, outputs, executor);
  return results;
}

int64_t MergePagesIn(const py::object& buffer, int64_t begin, int64_t end, int64_t block_size) {
  const std::string op_name = "merge_pages";
  const PyBytes bytes(buffer, op_name + ": buffer", true);
  if (begin < 0 || end < begin || static_cast<uint64_t>(end) > bytes.size()) {
    Fail(op_name, ": begin and end: expected 0 <= begin <= end <= ", bytes.size(), ", the size of the buffer, got ",
         begin, " and ", end);
  }
  const py::gil_scoped_release release;
  return begin +
         static_cast<int64_t>(MergePages(op_name, bytes.data() + begin, static_cast<size_t>(end - begin), block_size));
}

}  // namespace

void BindPagedAttention(py::module_& m) {
  m.def("paged_attention", &PagedAttention, py::arg("cache"), py::arg("q"), py::arg("k"), py::arg("v"), py::kw_only(),
        py::arg("attributes") = py::dict(), py::arg("key_encoding") = py::none(),
        py::arg("value_encoding") = py::none(), py::arg("request") = std::vector<std::string>(), py::arg("threads") = 1,
        R"(ai.rt::PagedAttention on bytes and numpy arrays (bfloat16 from ml_dtypes).

Args:
    cache: the past: bytes, or any contiguous buffer of them; 0 bytes are the empty cache.
    q: (B,Hq,S,D), C-contiguous float32, float16 or bfloat16.
    k: (B,Hkv,S,D) of the same type.
    v: (B,Hkv,S,Dv) of the same type.
    attributes: those of the operator, by name.
    key_encoding, value_encoding: (scale, onnx.TensorProto.DataType, zero point) of the new blocks; None: q's type.
    request: the optional outputs wanted: present, appended (uint8 arrays).
    threads: how many work on it, this one included.

Returns:
    the outputs by name; Y is always there.

Raises:
    ValueError: where the operator would fail.)");
  m.def("merge_pages", &MergePagesIn, py::arg("buffer"), py::arg("begin"), py::arg("end"), py::arg("block_size"),
        R"(Merges neighbouring pages in place; what lies outside buffer[begin:end] is neither read nor changed.

From left to right, pages become one of at most block_size tokens (its capacity is its length) when they are written as
the library writes them, have one scale and zero point a side, and agree in formats and parameters. Values and codes are
copied as they are, unused rows go. All other pages stay byte for byte.

Args:
    buffer: a writable contiguous buffer of bytes.
    begin, end: a run of whole pages in it, out of a bigger cache or not.
    block_size: at least 1.

Returns:
    where the run ends now; at most `end`.

Raises:
    ValueError: for a run that is none; the buffer is unchanged.)");
}

}  // namespace onnx_ai_rt
