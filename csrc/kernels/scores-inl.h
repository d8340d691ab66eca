// From dot products to masked scores: scale, softcap, bias, visibility, one row of a tile at a time.
#if defined(ONNX_AI_RT_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNX_AI_RT_SCORES_INL_H_
#undef ONNX_AI_RT_SCORES_INL_H_
#else
#define ONNX_AI_RT_SCORES_INL_H_
#endif

#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "kernels/attention_item.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnx_ai_rt {
namespace HWY_NAMESPACE {

template <typename C>
inline constexpr C kMinusInfinity = -std::numeric_limits<C>::infinity();

// softcap * tanh(x / softcap); NaN stays NaN.
template <typename C, class V = VecOf<C>>
HWY_INLINE V SoftCap(V x, C softcap) {
  const Lanes<C> d;
  const V cap = hn::Set(d, softcap);
  const V capped = hn::Mul(cap, hn::Tanh(d, hn::Div(x, cap)));
  return hn::IfThenElse(hn::IsNaN(x), x, capped);
}

template <typename C>
HWY_INLINE void FillRow(C value, size_t count, C* to) {
  std::fill_n(to, count, value);
}

// The first `count` mask values as numbers to add; false is -inf. `to` has room for whole vectors.
template <typename C>
HWY_INLINE void LoadMaskRow(const uint8_t* row, DType dtype, size_t count, C* to) {
  const auto convert = [&](auto element) {
    using T = decltype(element);
    for (size_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, row + i * sizeof(T), sizeof(T));
      to[i] = static_cast<C>(value);
    }
  };
  switch (dtype) {
    case DType::kBool:
      for (size_t i = 0; i < count; ++i) to[i] = row[i] != 0 ? C{0} : kMinusInfinity<C>;
      return;
    case DType::kInt8: return convert(int8_t());
    case DType::kUInt8: return convert(uint8_t());
    case DType::kInt16: return convert(int16_t());
    case DType::kUInt16: return convert(uint16_t());
    case DType::kInt32: return convert(int32_t());
    case DType::kUInt32: return convert(uint32_t());
    case DType::kInt64: return convert(int64_t());
    case DType::kUInt64: return convert(uint64_t());
    default:
      WithType<C>(dtype, [&](auto element) HWY_ATTR {
        if constexpr (!IsCode<decltype(element)>()) ConvertRow(Reader<decltype(element)>(row, 0), 0, count, C{1}, to);
      });
  }
}

// The bias of a query row on the keys of a tile. Tame: too small to carry a finite score beyond the range of floats,
// or -inf.
template <typename C>
struct RowBias {
  const C* values = nullptr;  // kTileKeys of them, at any address
  bool sees_keys = false;     // not all are -inf
  bool hides_keys = true;     // some are -inf
  bool is_tame = true;
};

template <typename C>
HWY_INLINE RowBias<C> DescribeBias(const C* values) {
  const Lanes<C> d;
  const VecOf<C> minus_infinity = hn::Set(d, kMinusInfinity<C>);
  const VecOf<C> most = hn::Set(d, C{1e30f});
  // A NaN takes part, and it is not tame: Eq and Le are false for it, and Ne is too on some targets.
  auto hidden = hn::Eq(hn::LoadU(d, values), minus_infinity);
  auto all_hidden = hidden, any_hidden = hidden;
  auto tame = hn::Or(hidden, hn::Le(hn::Abs(hn::LoadU(d, values)), most));
  for (size_t i = kLanes<C>; i < kTileKeys; i += kLanes<C>) {
    const VecOf<C> b = hn::LoadU(d, values + i);
    hidden = hn::Eq(b, minus_infinity);
    all_hidden = hn::And(all_hidden, hidden);
    any_hidden = hn::Or(any_hidden, hidden);
    tame = hn::And(tame, hn::Or(hidden, hn::Le(hn::Abs(b), most)));
  }
  return {values, !hn::AllTrue(d, all_hidden), !hn::AllFalse(d, any_hidden), hn::AllTrue(d, tame)};
}

// First mask value of query row `row` at `key`.
inline const uint8_t* MaskAt(const AttentionItem& item, int64_t row, int64_t key) {
  const MaskRows& mask = item.mask;
  const int64_t token = item.token_begin + row / item.group;
  const int64_t element = row % item.group * mask.head_stride + token * mask.token_stride + key * mask.key_stride;
  return mask.data + element * static_cast<int64_t>(BytesOf(mask.dtype));
}

// The bias of query row `row` of the item on keys [key, key + width): -inf where a key does not take part. The mask
// itself where it can be added as it is, else written to `buffer`, which has kTileKeys elements.
template <typename C>
HWY_INLINE RowBias<C> BiasRow(const AttentionItem& item, int64_t row, int64_t key, int64_t width,
                              C* HWY_RESTRICT buffer) {
  const int64_t token = item.token_begin + row / item.group;
  const MaskRows& mask = item.mask;
  int64_t low = item.visibility.Low(token), high = item.visibility.High(token);
  if (mask.data != nullptr && mask.key_stride != 0) high = std::min(high, mask.key_count);
  low = std::clamp<int64_t>(low - key, 0, width);
  high = std::clamp<int64_t>(high - key, 0, width);
  if (low >= high) {
    FillRow(kMinusInfinity<C>, kTileKeys, buffer);
    return {buffer};
  }
  RowBias<C> bias;
  if (mask.data == nullptr) {
    FillRow(C{0}, static_cast<size_t>(high), buffer);
    bias = {buffer, true, low > 0 || high < kTileKeys};
  } else {
    const uint8_t* const from = MaskAt(item, row, key);
    constexpr DType kComputeDType = sizeof(C) == sizeof(double) ? DType::kDouble : DType::kFloat;
    if (mask.dtype == kComputeDType && mask.key_stride == 1 && low == 0 && high == kTileKeys) {
      bias = DescribeBias(reinterpret_cast<const C*>(from));
      bias.is_tame &= !mask.sum_in_float;
      return bias;
    }
    if (mask.key_stride == 0) {
      HWY_ALIGN C one[kLanes<C>] = {};
      LoadMaskRow(from, mask.dtype, 1, one);
      FillRow(one[0], static_cast<size_t>(high), buffer);
    } else {
      LoadMaskRow(from, mask.dtype, static_cast<size_t>(high), buffer);
    }
  }
  FillRow(kMinusInfinity<C>, static_cast<size_t>(low), buffer);
  FillRow(kMinusInfinity<C>, static_cast<size_t>(kTileKeys - high), buffer + high);
  if (mask.data == nullptr) return bias;
  bias = DescribeBias<C>(buffer);
  bias.is_tame &= !mask.sum_in_float;
  return bias;
}

// s * scale, then softcap where it is on.
template <typename C>
HWY_INLINE VecOf<C> ScaledScore(VecOf<C> s, C scale, C softcap) {
  const VecOf<C> scaled = hn::Mul(s, hn::Set(Lanes<C>(), scale));
  return softcap > C{0} ? SoftCap(scaled, softcap) : scaled;
}

// Adds the bias. A finite sum that overflows is clamped, so that only a bias of -inf masks; -inf wins over NaN.
// `in_float` gives the sum float's range and precision: a bias of -1e9 then swallows the scores as it does in float.
template <typename C, class V = VecOf<C>>
HWY_INLINE V BiasedScore(V s, V bias, bool in_float) {
  const Lanes<C> d;
  const V most = hn::Set(d, in_float ? C{std::numeric_limits<float>::max()} : std::numeric_limits<C>::max());
  const V minus_infinity = hn::Set(d, kMinusInfinity<C>);
  const V sum = hn::Add(s, bias);
  const V clamped = hn::Max(hn::Min(sum, most), hn::Neg(most));
  const auto both_finite = hn::And(hn::IsFinite(s), hn::IsFinite(bias));
  V result = hn::IfThenElse(both_finite, clamped, sum);
  if constexpr (sizeof(C) == sizeof(double)) {
    if (in_float) result = hn::PromoteTo(d, hn::DemoteTo(hn::Rebind<float, Lanes<C>>(), result));
  }
  return hn::IfThenElse(hn::Eq(bias, minus_infinity), minus_infinity, result);
}

}  // namespace HWY_NAMESPACE
}  // namespace onnx_ai_rt
HWY_AFTER_NAMESPACE();
#endif  // toggle
