// Introspection for Python and for programs in other languages; works before any registration.
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "kernels/cpu_features.h"
#include "kernels/error.h"
#include "ort/export.h"
#include "ort/kernel_runs.h"
#include "ort/operators.h"

#ifndef ONNX_AI_RT_VERSION
#error "define ONNX_AI_RT_VERSION, the version of the package, as a string"
#endif

namespace onnx_ai_rt {
namespace {

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += ' ';
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

// "[a,b]" of items that are JSON already.
template <typename Items, typename F>
std::string Array(const Items& items, const F& json_of) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += ',';
    text += json_of(item);
  }
  return text + ']';
}

std::string Strings(const std::vector<std::string>& items) { return Array(items, Quoted); }

// Each slot with the types that it takes over all variants; none listed means any numeric or bool type.
std::string Slots(const OperatorSpec& spec, const std::vector<Slot>& slots, std::vector<DType> Variant::* types) {
  size_t index = 0;
  return Array(slots, [&](const Slot& slot) {
    std::vector<std::string> names;
    for (const Variant& variant : spec.variants) {
      const DType type = (variant.*types)[index];
      const std::string name = DTypeName(type);
      if (type == DType::kUndefined || std::find(names.begin(), names.end(), name) != names.end()) continue;
      names.push_back(name);
    }
    ++index;
    return "{\"name\":" + Quoted(slot.name) + ",\"optional\":" + (slot.optional ? "true" : "false") +
           ",\"types\":" + Strings(names) + "}";
  });
}

std::string Operator(const OperatorSpec& spec) {
  return "{\"name\":" + Quoted(spec.name) + ",\"domains\":" + Strings(spec.domains) +
         ",\"variants\":" + std::to_string(spec.variants.size()) +
         ",\"inputs\":" + Slots(spec, spec.inputs, &Variant::inputs) +
         ",\"outputs\":" + Slots(spec, spec.outputs, &Variant::outputs) + "}";
}

std::string Info() {
  return "{\"version\":" + Quoted(ONNX_AI_RT_VERSION) + ",\"ort_api_version\":" + std::to_string(ORT_API_VERSION) +
         ",\"onnxruntime\":" + Quoted(RuntimeText()) + ",\"cpu_targets\":" + Strings(SupportedCpuTargets()) +
         ",\"chosen_cpu_target\":" + Quoted(ChosenCpuTarget()) + ",\"operators\":" + Array(AllOperators(), Operator) +
         "}";
}

std::string Runs() {
  return Array(KernelRuns(), [](const KernelRun& run) {
    return "{\"operator\":" + Quoted(run.op) + ",\"path\":" + Quoted(run.path) + ",\"target\":" + Quoted(run.target) +
           ",\"count\":" + std::to_string(run.count) + "}";
  });
}

std::string Answer(const std::string& request) {
  constexpr std::string_view kChoose = "choose_target";
  if (request == "info") return Info();
  if (request == "kernel_runs") return Runs();
  if (request == "reset_kernel_runs") {
    ResetKernelRuns();
    return "{}";
  }
  if (request.starts_with(kChoose)) {
    const size_t name = request.find_first_not_of(' ', kChoose.size());
    ChooseCpuTarget(name == std::string::npos ? "" : request.substr(name));
    return "{\"chosen_cpu_target\":" + Quoted(ChosenCpuTarget()) + "}";
  }
  Fail("OnnxAiRtQuery: request must be info, kernel_runs, reset_kernel_runs or choose_target NAME, got '", request,
       "'");
}

}  // namespace
}  // namespace onnx_ai_rt

// Writes a NUL-terminated JSON answer to `request`, as far as `size` bytes hold it, and returns the bytes that all of
// it needs. A failure is answered with {"error": "..."}. buffer may be null when size is 0.
extern "C" ONNX_AI_RT_EXPORT int64_t OnnxAiRtQuery(const char* request, char* buffer, int64_t size) {
  std::string answer;
  try {
    answer = onnx_ai_rt::Answer(request == nullptr ? "" : request);
  } catch (const std::exception& error) {
    answer = "{\"error\":" + onnx_ai_rt::Quoted(error.what()) + "}";
  }
  if (buffer != nullptr && size > 0) {
    const size_t fits = std::min(answer.size(), static_cast<size_t>(size) - 1);
    std::memcpy(buffer, answer.data(), fits);
    buffer[fits] = '\0';
  }
  return static_cast<int64_t>(answer.size()) + 1;
}
