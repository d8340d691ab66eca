// What crosses between ONNX Runtime and the kernels: exceptions -> OrtStatus, OrtValue -> TensorView, the session's
// pool -> Executor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/executor.h"
#include "kernels/tensor_view.h"
#include "ort/api.h"

namespace onnx_ai_rt {

// The status of the exception that is being handled: INVALID_ARGUMENT for a caller's mistake. Call it in a catch block.
OrtStatus* StatusOfCurrentException() noexcept;

// Runs f, which may throw anything, for a caller that speaks C.
template <typename F>
OrtStatus* Guarded(F&& f) noexcept {
  try {
    f();
    return nullptr;
  } catch (...) {
    return StatusOfCurrentException();
  }
}

// One node while its kernel is created.
class NodeInfo {
 public:
  NodeInfo(const OrtKernelInfo* info, std::string op_label) : info_(info), op_label_(std::move(op_label)) {}

  // "Attention" or "ai.rt::Attention": how messages and kernel_runs() name the operator.
  const std::string& op_label() const { return op_label_; }
  std::string NodeName() const;

  // Attributes; nullopt where the node has none of this name. Throw InvalidArgument where it has one of another type.
  std::optional<int64_t> Int(const char* name) const;
  std::optional<float> Float(const char* name) const;

  size_t InputCount() const;
  size_t OutputCount() const;
  // False where the node leaves the output out.
  bool WantsOutput(size_t index) const;

 private:
  [[noreturn]] void FailOnOtherType(const char* name, const char* expected) const;
  bool Has(const char* name) const;

  const OrtKernelInfo* info_;
  std::string op_label_;
};

// One run of one node. Cheap: holds pointers only.
class NodeRun final : public Executor {
 public:
  NodeRun(OrtKernelContext* context, const std::string& op_label, const std::string& node_name, size_t input_count,
          size_t output_count)
      : context_(context),
        op_label_(op_label),
        node_name_(node_name),
        input_count_(input_count),
        output_count_(output_count) {}

  const std::string& op_label() const { return op_label_; }

  // The input where it lies; not present where the node or its caller leaves it out.
  TensorView Input(size_t index) const;
  // Allocates the output and returns its buffer; null where the node leaves it out, and only there.
  void* Output(size_t index, const Shape& shape) const;

  // Counts the run for kernel_runs() and logs it at VERBOSE. Call it once, after the kernel's work.
  void Ran(const std::string& path) const;

  // The session's intra-op pool.
  void Run(size_t count, Body body, void* context) override;

 private:
  OrtKernelContext* context_;
  const std::string& op_label_;
  const std::string& node_name_;
  size_t input_count_;
  size_t output_count_;
};

}  // namespace onnx_ai_rt
