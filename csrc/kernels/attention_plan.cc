// Validation of Attention's inputs and the choice of path. No SIMD.
#include <cmath>
#include <optional>

#include "kernels/attention.h"
#include "kernels/attention_driver.h"
#include "kernels/error.h"

namespace onnx_ai_rt {
namespace {

class Checker {
 public:
  Checker(const AttentionAttributes& attributes, const AttentionInputs& inputs, AttentionPlan& plan)
      : a_(attributes), in_(inputs), plan_(plan) {}

  void Run() {
    CheckAttributes();
    CheckTypes();
    ReadHeads();
    ReadPast();
    CheckSizes();
    CheckMask();
    CheckNonpad();
  }

 private:
  template <typename... Parts>
  [[noreturn]] void Bad(const char* input, const Parts&... parts) const {
    Fail(plan_.op_name, ": input ", input, ": ", parts...);
  }
  template <typename... Parts>
  [[noreturn]] void BadAttribute(const char* name, const Parts&... parts) const {
    Fail(plan_.op_name, ": attribute ", name, ": ", parts...);
  }

  void CheckAttributes() const {
    if (a_.scale && !std::isfinite(*a_.scale)) BadAttribute("scale", "expected a finite number, got ", *a_.scale);
    if (!std::isfinite(a_.softcap)) BadAttribute("softcap", "expected a finite number, got ", a_.softcap);
    CheckHeads("q_num_heads", a_.q_num_heads);
    CheckHeads("kv_num_heads", a_.kv_num_heads);
    if (a_.qk_matmul_output_mode < 0 || a_.qk_matmul_output_mode > 3) {
      BadAttribute("qk_matmul_output_mode", "expected 0, 1, 2 or 3, got ", a_.qk_matmul_output_mode);
    }
    CheckWindow("left_window_size", a_.left_window_size);
    CheckWindow("right_window_size", a_.right_window_size);
  }

  void CheckHeads(const char* name, std::optional<int64_t> heads) const {
    if (heads && *heads <= 0) BadAttribute(name, "expected a positive number, got ", *heads);
  }

  void CheckWindow(const char* name, int64_t size) const {
    if (size < -1) BadAttribute(name, "expected -1 (unbounded) or more, got ", size);
  }

  void CheckTypes() const {
    CheckPresent("Q", in_.query);
    CheckPresent("K", in_.key);
    CheckPresent("V", in_.value);
    CheckFloating("Q", in_.query);
    CheckFloating("V", in_.value);
    CheckSameType("K", in_.key, "Q", in_.query);
    if (in_.past_key.present) CheckSameType("past_key", in_.past_key, "K", in_.key);
    if (in_.past_value.present) CheckSameType("past_value", in_.past_value, "V", in_.value);
  }

  void CheckPresent(const char* name, const TensorView& view) const {
    if (!view.present) Bad(name, "expected a tensor, got none");
  }

  void CheckFloating(const char* name, const TensorView& view) const {
    if (!IsFloating(view.dtype)) {
      Bad(name, "expected type float, float16, bfloat16 or double, got ", DTypeName(view.dtype));
    }
  }

  void CheckSameType(const char* name, const TensorView& view, const char* other_name, const TensorView& other) const {
    if (view.dtype != other.dtype) {
      Bad(name, "expected the type of ", other_name, ", ", DTypeName(other.dtype), ", got ", DTypeName(view.dtype));
    }
  }

  // Shapes of Q, K, V to batch, heads, lengths and head sizes.
  void ReadHeads() {
    const size_t rank = in_.query.shape.size();
    if (rank != 3 && rank != 4) Bad("Q", "expected rank 3 or 4, got shape ", ShapeText(in_.query.shape));
    CheckRank("K", in_.key, rank);
    CheckRank("V", in_.value, rank);
    plan_.rank3 = rank == 3;
    if (plan_.rank3 && (!a_.q_num_heads || !a_.kv_num_heads)) {
      BadAttribute(!a_.q_num_heads ? "q_num_heads" : "kv_num_heads",
                   "expected a positive number, since Q, K and V have rank 3, got none");
    }
    const Split q = SplitHeads("Q", in_.query, "q_num_heads", a_.q_num_heads);
    const Split k = SplitHeads("K", in_.key, "kv_num_heads", a_.kv_num_heads);
    const Split v = SplitHeads("V", in_.value, "kv_num_heads", a_.kv_num_heads);
    Expect("K", in_.key, "the batch size of Q", q.batch, k.batch);
    Expect("V", in_.value, "the batch size of Q", q.batch, v.batch);
    Expect("V", in_.value, "the heads of K", k.heads, v.heads);
    Expect("V", in_.value, "the sequence length of K", k.length, v.length);
    Expect("K", in_.key, "the head size of Q", q.head_size, k.head_size);
    if (q.heads % k.heads != 0) {
      Bad("Q", "expected a number of heads that is a multiple of the ", k.heads, " key/value heads, got ", q.heads);
    }
    plan_.batch = q.batch;
    plan_.q_heads = q.heads;
    plan_.kv_heads = k.heads;
    plan_.q_len = q.length;
    plan_.new_len = k.length;
    plan_.head_size = q.head_size;
    plan_.v_head_size = v.head_size;
  }

  struct Split {
    int64_t batch, heads, length, head_size;
  };

  void CheckRank(const char* name, const TensorView& view, size_t rank) const {
    if (view.shape.size() != rank) {
      Bad(name, "expected rank ", rank, " as Q has, got shape ", ShapeText(view.shape));
    }
  }

  void Expect(const char* name, const TensorView& view, const char* what, int64_t expected, int64_t got) const {
    if (expected != got) {
      Bad(name, "expected ", what, ", ", expected, ", got ", got, " in shape ", ShapeText(view.shape));
    }
  }

  Split SplitHeads(const char* name, const TensorView& view, const char* attribute,
                   std::optional<int64_t> given) const {
    const Shape& s = view.shape;
    if (!plan_.rank3) {
      if (s[1] == 0) Bad(name, "expected at least one head, got shape ", ShapeText(s));
      if (given && *given != s[1]) {
        Bad(name, "expected ", *given, " heads as attribute ", attribute, " says, got ", s[1], " in shape ",
            ShapeText(s));
      }
      return {s[0], s[1], s[2], s[3]};
    }
    const int64_t heads = *given;
    if (s[2] % heads != 0) {
      Bad(name, "expected a last dimension that is a multiple of attribute ", attribute, ", ", heads, ", got shape ",
          ShapeText(s));
    }
    return {s[0], heads, s[1], s[2] / heads};
  }

  void ReadPast() {
    if (in_.past_key.present != in_.past_value.present) {
      Bad(in_.past_key.present ? "past_value" : "past_key",
          "expected both past_key and past_value or neither, got only ",
          in_.past_key.present ? "past_key" : "past_value");
    }
    if (in_.past_key.present) {
      CheckPast("past_key", in_.past_key, plan_.head_size);
      plan_.past_len = in_.past_key.shape[2];
      CheckPast("past_value", in_.past_value, plan_.v_head_size);
      Expect("past_value", in_.past_value, "the sequence length of past_key", plan_.past_len, in_.past_value.shape[2]);
    }
    if (__builtin_add_overflow(plan_.past_len, plan_.new_len, &plan_.kv_len)) {
      Bad("past_key", "expected fewer than 2^63 keys together with K, got ", plan_.past_len, " and ", plan_.new_len);
    }
  }

  // A dimension of 0 must not hide that others have no product: sizes and strides are computed in any order.
  void CheckSizes() const {
    const AttentionPlan& p = plan_;
    CheckProduct("V", "Y", {p.batch, p.q_heads, p.q_len, p.v_head_size});
    CheckProduct("K", "present_key", {p.batch, p.kv_heads, p.kv_len, p.head_size});
    CheckProduct("V", "present_value", {p.batch, p.kv_heads, p.kv_len, p.v_head_size});
    CheckProduct("K", "qk_matmul_output", {p.batch, p.q_heads, p.q_len, p.kv_len});
  }

  void CheckProduct(const char* input, const char* output, const Shape& shape) const {
    int64_t count = 1;
    for (const int64_t dim : shape) {
      if (dim == 0 || !__builtin_mul_overflow(count, dim, &count)) continue;
      Bad(input, "expected dimensions of ", output, " with a product below 2^63, zeros aside, got ", ShapeText(shape));
    }
  }

  void CheckPast(const char* name, const TensorView& view, int64_t width) const {
    const Shape& s = view.shape;
    if (s.size() != 4 || s[0] != plan_.batch || s[1] != plan_.kv_heads || s[3] != width) {
      Bad(name, "expected shape (", plan_.batch, ",", plan_.kv_heads, ",past,", width, "), got ", ShapeText(s));
    }
  }

  void CheckMask() const {
    const TensorView& mask = in_.attn_mask;
    if (!mask.present) return;
    switch (mask.dtype) {
      case DType::kUndefined:
      case DType::kInt2:
      case DType::kUInt2:
        Bad("attn_mask", "expected type bool, a float type or an integer type of 4 to 64 bits, got ",
            DTypeName(mask.dtype));
      default: break;
    }
    const Shape full{plan_.batch, plan_.q_heads, plan_.q_len, plan_.kv_len};
    const size_t rank = mask.shape.size();
    if (rank > 4) {
      Bad("attn_mask", "expected rank 0 to 4, got shape ", ShapeText(mask.shape));
    }
    if (rank == 0) return;
    const int64_t keys = mask.shape[rank - 1];
    if (keys > plan_.kv_len && !(keys == 1 && plan_.kv_len == 0)) {
      Bad("attn_mask", "expected a last dimension of at most the ", plan_.kv_len, " keys, got shape ",
          ShapeText(mask.shape));
    }
    for (size_t i = 0; i + 1 < rank; ++i) {
      const int64_t expected = full[4 - rank + i];
      if (mask.shape[i] != 1 && mask.shape[i] != expected) {
        Bad("attn_mask", "expected a shape that broadcasts to ", ShapeText(full), ", got dimension ", mask.shape[i],
            " where ", expected == 1 ? "" : "1 or ", expected, " is needed in shape ", ShapeText(mask.shape));
      }
    }
  }

  void CheckNonpad() const {
    const TensorView& nonpad = in_.nonpad_kv_seqlen;
    if (!nonpad.present) return;
    if (in_.past_key.present) {
      Bad("nonpad_kv_seqlen", "expected none together with past_key and past_value, got shape ",
          ShapeText(nonpad.shape));
    }
    if (nonpad.dtype != DType::kInt64) {
      Bad("nonpad_kv_seqlen", "expected type int64, got ", DTypeName(nonpad.dtype));
    }
    const Shape& s = nonpad.shape;
    const bool fits = (s.size() == 1 && s[0] == plan_.batch) || (s.size() == 2 && s[0] == plan_.batch && s[1] == 1);
    if (!fits) {
      Bad("nonpad_kv_seqlen", "expected shape (", plan_.batch, ") or (", plan_.batch, ",1), got ", ShapeText(s));
    }
  }

  const AttentionAttributes& a_;
  const AttentionInputs& in_;
  AttentionPlan& plan_;
};

// Float adds a bias of these types with loss, or out of its range.
bool MaskNeedsDouble(const TensorView& mask) {
  if (!mask.present) return false;
  switch (mask.dtype) {
    case DType::kDouble:
    case DType::kInt32:
    case DType::kUInt32:
    case DType::kInt64:
    case DType::kUInt64: return true;
    default: return false;
  }
}

}  // namespace

AttentionPlan PlanAttention(const std::string& op_name, const AttentionAttributes& attributes,
                            const AttentionInputs& inputs, const AttentionRequest& request) {
  AttentionPlan plan;
  plan.op_name = op_name;
  plan.attributes = attributes;
  plan.request = request;
  Checker(attributes, inputs, plan).Run();

  plan.output_dtype = inputs.query.dtype;
  plan.scale = attributes.scale ? static_cast<double>(*attributes.scale)
                                : (plan.head_size > 0 ? 1.0 / std::sqrt(static_cast<double>(plan.head_size)) : 1.0);
  plan.compute_in_double = inputs.query.dtype == DType::kDouble || inputs.value.dtype == DType::kDouble ||
                           attributes.softmax_in_double || MaskNeedsDouble(inputs.attn_mask);
  plan.sum_in_float =
      plan.compute_in_double && inputs.query.dtype != DType::kDouble && !MaskNeedsDouble(inputs.attn_mask);
  plan.output_shape = plan.rank3 ? Shape{plan.batch, plan.q_len, plan.q_heads * plan.v_head_size}
                                 : Shape{plan.batch, plan.q_heads, plan.q_len, plan.v_head_size};
  plan.present_key_shape = {plan.batch, plan.kv_heads, plan.kv_len, plan.head_size};
  plan.present_value_shape = {plan.batch, plan.kv_heads, plan.kv_len, plan.v_head_size};
  plan.scores_shape = {plan.batch, plan.q_heads, plan.q_len, plan.kv_len};
  const AttentionSizes sizes{plan.batch,  plan.q_heads,   plan.kv_heads,   plan.q_len,
                             plan.kv_len, plan.head_size, plan.v_head_size};
  const AttentionSplit split = ChooseSplit(sizes, plan.compute_in_double, !request.scores);
  plan.query_block = split.query_block;
  plan.key_pieces = split.key_pieces;
  const bool direct = plan.query_block * (plan.q_heads / plan.kv_heads) <= kDirectRows;
  const int data_parts = MostParts(BFloat16Parts(inputs.key.dtype), BFloat16Parts(inputs.value.dtype));
  plan.path = PathOf(direct, plan.compute_in_double, inputs.query.dtype, data_parts);
  if (request.scores) plan.path += "_scores";
  return plan;
}

}  // namespace onnx_ai_rt
