// Attention on numpy arrays.
#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "kernels/error.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace onnx_ai_rt {
namespace {

using Arrays = std::map<std::string, py::array>;

TensorView Input(const Arrays& inputs, const char* name) {
  const auto found = inputs.find(name);
  return found == inputs.end() ? TensorView{} : ViewOf(found->second, name);
}

AttentionInputs ReadInputs(const Arrays& inputs) {
  return {Input(inputs, "Q"),
          Input(inputs, "K"),
          Input(inputs, "V"),
          Input(inputs, "attn_mask"),
          Input(inputs, "past_key"),
          Input(inputs, "past_value"),
          Input(inputs, "nonpad_kv_seqlen")};
}

AttentionAttributes ReadAttributes(const py::dict& attributes) {
  AttentionAttributes a;
  for (const auto& [key, value] : attributes) {
    const auto name = key.cast<std::string>();
    if (name == "scale")
      a.scale = value.cast<float>();
    else if (name == "is_causal")
      a.is_causal = value.cast<int>() != 0;
    else if (name == "q_num_heads")
      a.q_num_heads = value.cast<int64_t>();
    else if (name == "kv_num_heads")
      a.kv_num_heads = value.cast<int64_t>();
    else if (name == "softcap")
      a.softcap = value.cast<float>();
    else if (name == "softmax_precision")
      a.softmax_in_double = value.cast<int>() == static_cast<int>(DType::kDouble);
    else if (name == "qk_matmul_output_mode")
      a.qk_matmul_output_mode = value.cast<int64_t>();
    else if (name == "left_window_size")
      a.left_window_size = value.cast<int64_t>();
    else if (name == "right_window_size")
      a.right_window_size = value.cast<int64_t>();
    else
      Fail("Attention: expected one of the operator's attributes, got '", name, "'");
  }
  return a;
}

AttentionRequest ReadRequest(const std::vector<std::string>& names) {
  AttentionRequest request;
  for (const std::string& name : names) {
    if (name == "present_key")
      request.present_key = true;
    else if (name == "present_value")
      request.present_value = true;
    else if (name == "qk_matmul_output")
      request.scores = true;
    else if (name != "Y")
      Fail("Attention: expected one of the operator's outputs, got '", name, "'");
  }
  return request;
}

// The caller's array of that name, or a new one.
py::array Output(const Arrays& given, const char* name, const Shape& shape, DType dtype) {
  const auto found = given.find(name);
  if (found == given.end()) return py::array(NumpyDType(dtype), shape);
  const TensorView view = ViewOf(found->second, name);
  if (view.shape != shape || view.dtype != dtype) {
    Fail("Attention: output ", name, ": expected ", DTypeName(dtype), ShapeText(shape), ", got ", DTypeName(view.dtype),
         ShapeText(view.shape));
  }
  return found->second;
}

Arrays Attention(const Arrays& inputs, const py::dict& attributes, const std::vector<std::string>& request_names,
                 int threads, const Arrays& given) {
  const AttentionInputs in = ReadInputs(inputs);
  const AttentionRequest request = ReadRequest(request_names);
  const AttentionPlan plan = PlanAttention("Attention", ReadAttributes(attributes), in, request);
  Arrays results;
  AttentionOutputs out;
  const auto add = [&](const char* name, const Shape& shape, DType dtype) {
    return results.emplace(name, Output(given, name, shape, dtype)).first->second.mutable_data();
  };
  out.output = add("Y", plan.output_shape, plan.output_dtype);
  if (request.present_key) out.present_key = add("present_key", plan.present_key_shape, in.key.dtype);
  if (request.present_value) out.present_value = add("present_value", plan.present_value_shape, in.value.dtype);
  if (request.scores) out.scores = add("qk_matmul_output", plan.scores_shape, plan.output_dtype);
  ThreadExecutor executor(threads);
  const py::gil_scoped_release release;
  RunAttention(plan, in, out, executor);
  return results;
}

py::dict Plan(const Arrays& inputs, const py::dict& attributes, const std::vector<std::string>& request_names) {
  const AttentionPlan plan =
      PlanAttention("Attention", ReadAttributes(attributes), ReadInputs(inputs), ReadRequest(request_names));
  py::dict d;
  d["path"] = plan.path;
  d["query_block"] = plan.query_block;
  d["key_pieces"] = plan.key_pieces;
  d["compute_in_double"] = plan.compute_in_double;
  return d;
}

}  // namespace

void BindAttention(py::module_& m) {
  m.def("attention", &Attention, py::arg("inputs"), py::arg("attributes") = py::dict(),
        py::arg("request") = std::vector<std::string>(), py::arg("threads") = 1, py::arg("outputs") = Arrays(),
        R"(ONNX Attention on numpy arrays (bfloat16 from ml_dtypes).

inputs: Q, K, V and any of attn_mask, past_key, past_value, nonpad_kv_seqlen, C-contiguous.
attributes: those of the operator, by name.
request: the optional outputs wanted: present_key, present_value, qk_matmul_output.
outputs: arrays to write into, by output name; new ones are made for the others.
Returns the outputs by name; Y is always there. Raises ValueError where the operator would fail.)");
  m.def("plan_attention", &Plan, py::arg("inputs"), py::arg("attributes") = py::dict(),
        py::arg("request") = std::vector<std::string>(),
        "The choices that attention() would make: path, query_block, key_pieces, compute_in_double.");
}

}  // namespace onnx_ai_rt
