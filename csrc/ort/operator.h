// How an operator of the library is described, once, for registration, introspection and shape inference.
//
// A new operator is one file, xyz_op.cc, with
//   1. a class derived from Kernel: the constructor reads attributes from NodeInfo, Compute translates a NodeRun into
//      calls of the pure layers;
//   2. a function `OperatorSpec XyzOperator()` that lists slots and type variants (Grid() builds products of types);
//   3. if it can tell shapes before a run, a function void(ShapeInference&);
// and one line each in operators.h and register.cc. 2-bit types are listed like all others: registration leaves out the
// variants that the runtime cannot declare.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/tensor_view.h"
#include "ort/boundary.h"
#include "ort/shape_inference.h"

namespace onnx_ai_rt {

// The work of one node of one session. Compute runs concurrently on several threads.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // Throws InvalidArgument at a caller's mistake.
  virtual void Compute(NodeRun& run) const = 0;
};

struct Slot {
  std::string name;
  bool optional = false;
};

// The element type of each input and output; kUndefined is any type. ONNX Runtime wants an input to be kUndefined in
// all variants of an operator or in none.
struct Variant {
  std::vector<DType> inputs;
  std::vector<DType> outputs;
};

struct OperatorSpec {
  std::string name;
  std::vector<std::string> domains;  // "" is ai.onnx
  std::vector<Slot> inputs;
  std::vector<Slot> outputs;
  std::vector<Variant> variants;
  std::unique_ptr<Kernel> (*create)(const NodeInfo&) = nullptr;
  void (*infer_shapes)(ShapeInference&) = nullptr;  // may be null
};

// All variants whose groups range over their types independently: `make` maps one type a group to a Variant.
std::vector<Variant> Grid(const std::vector<std::vector<DType>>& groups,
                          Variant (*make)(const std::vector<DType>& types));

// "Attention", "ai.rt::Attention".
std::string OperatorLabel(const std::string& domain, const std::string& name);

// True where no type of the variant has 2 bits, or the runtime can declare those.
bool CanDeclare(const Variant& variant, RuntimeVersion runtime);

// One OrtCustomOp: a variant of an operator in a domain. ONNX Runtime keeps its address: it must outlive all sessions.
class CustomOp final : public OrtCustomOp {
 public:
  // `spec` must outlive the object.
  CustomOp(const OperatorSpec& spec, const Variant& variant, const std::string& domain, RuntimeVersion runtime);

 private:
  static const CustomOp& Self(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }
  OrtStatus* Create(const OrtKernelInfo* info, void** kernel) const noexcept;

  const OperatorSpec& spec_;
  std::string label_;
  std::vector<ONNXTensorElementDataType> input_types_;
  std::vector<ONNXTensorElementDataType> output_types_;
};

}  // namespace onnx_ai_rt
