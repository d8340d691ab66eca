// Output shapes before a run. A dimension is a number, a name, or unknown; names are kept, so that ONNX Runtime still
// knows that two dimensions agree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ort/api.h"

namespace onnx_ai_rt {

struct Dim {
  int64_t value = -1;  // < 0: not a known number
  std::string name;    // empty: unknown

  static Dim Of(int64_t number) { return {number, ""}; }
  bool IsNumber() const { return value >= 0; }
  bool IsKnown() const { return IsNumber() || !name.empty(); }
};

// Number where both are numbers and b divides a, else unknown.
Dim operator/(const Dim& a, const Dim& b);
Dim operator*(const Dim& a, const Dim& b);

using SymbolicShape = std::vector<Dim>;

class ShapeInference {
 public:
  explicit ShapeInference(OrtShapeInferContext* context) : context_(context) {}

  // nullopt where the input is omitted or its rank is unknown. ONNX Runtime reports an unknown rank as rank 0: a scalar
  // is nullopt, too.
  std::optional<SymbolicShape> Input(size_t index) const;
  // 0 where the node has none.
  int64_t Int(const char* attribute) const;
  // The first output's shape. Unknown dimensions get a name of their own, which never displaces one that the model
  // declares. There is no such function for the other outputs: ONNX Runtime does not tell how many the node has, and
  // writes beyond its own array where it is given the shape of one that the node leaves out.
  void SetFirstOutput(DType dtype, const SymbolicShape& shape);
  DType InputType(size_t index) const;

 private:
  const OrtTensorTypeAndShapeInfo* InputInfo(size_t index) const;

  OrtShapeInferContext* context_;
};

}  // namespace onnx_ai_rt
