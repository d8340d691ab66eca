#include "cache/payload.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace onnx_ai_rt {
namespace {

const char* const kAxisNames[4] = {"batch", "heads", "capacity", "width"};

std::string DimsText(const DimList& shape) {
  Shape dims(shape.dims, shape.dims + std::min<uint64_t>(shape.rank, 4));
  if (shape.rank <= 4) return ShapeText(dims);
  return ShapeText(dims) + " and " + std::to_string(shape.rank - 4) + " more dimensions";
}

// Product of the dimensions; -1 where one is negative or they reach beyond kMaxPayloadValues, a dimension of 0 aside:
// so every partial product of a valid shape can be computed.
int64_t CountOf(const DimList& shape) {
  if (shape.rank > 4) return -1;
  int64_t count = 1;
  bool empty = false;
  for (uint64_t i = 0; i < shape.rank; ++i) {
    const int64_t dim = shape.dims[i];
    if (dim < 0) return -1;
    empty |= dim == 0;
    if (dim > 0 && (__builtin_mul_overflow(count, dim, &count) || count > kMaxPayloadValues)) return -1;
  }
  return empty ? 0 : count;
}

void SetShape(const DimList& shape, const CachePlace& place, StoredPayload* stored) {
  if (shape.rank != 4) {
    place.Fail("expected a payload of 4 dimensions [batch, kv_heads, capacity, width], got ", DimsText(shape));
  }
  if (CountOf(shape) < 0)
    place.Fail("expected dimensions of at least 0 and at most 2^57 values, got ", DimsText(shape));
  stored->batch = shape.dims[0];
  stored->heads = shape.dims[1];
  stored->capacity = shape.dims[2];
  stored->width = shape.dims[3];
}

// The bytes of `values` stored values in raw_data.
ByteSpan ExactBytes(ByteSpan raw, DType dtype, int64_t values, const CachePlace& place, const char* what) {
  const uint64_t expected = static_cast<uint64_t>(StoredBytes(dtype, values));
  if (raw.size != expected) {
    place.Fail("expected ", expected, " bytes in the raw_data of the ", what, " for ", values, " values of ",
               DTypeName(dtype), ", got ", raw.size);
  }
  const int used = static_cast<int>(values * BitsOf(dtype) % 8);
  if (used != 0 && raw.data[raw.size - 1] >> used != 0) {
    place.Fail("expected zeros in the ", 8 - used, " unused high bits of the last byte of the ", what, ", got byte ",
               static_cast<int>(raw.data[raw.size - 1]));
  }
  return raw;
}

// Exactly one of raw_data and the typed field that belongs to the type may hold values.
void CheckStorage(const TensorFields& tensor, bool typed_float, const CachePlace& place, const char* what) {
  if (tensor.data_location != 0) place.Fail("expected the values of the ", what, " inline, got external data");
  const uint64_t own = typed_float ? tensor.float_count : tensor.int32_count;
  if (own != tensor.TypedCount()) {
    place.Fail("expected the values of the ", what, " in raw_data or ", typed_float ? "float_data" : "int32_data",
               ", got another typed field");
  }
  if (tensor.has_raw && own != 0) {
    place.Fail("expected the values of the ", what, " in one field, got both raw_data and ",
               typed_float ? "float_data" : "int32_data");
  }
}

std::vector<ByteSpan> BodiesOf(const TensorFields& tensor) {
  return tensor.bodies.empty() ? std::vector<ByteSpan>{tensor.body} : tensor.bodies;
}

PayloadView ResolveDense(const TensorFields& tensor, const CachePlace& place, PagedCacheView* view) {
  PayloadView payload;
  StoredPayload& stored = payload.stored;
  stored.dtype = static_cast<DType>(tensor.data_type);
  if (!IsDenseType(stored.dtype)) {
    place.Fail("expected a dense payload of float, float16 or bfloat16 (data type 1, 10 or 16), got data type ",
               tensor.data_type);
  }
  SetShape(tensor.shape, place, &stored);
  CheckStorage(tensor, stored.dtype == DType::kFloat, place, "payload");
  const int64_t values = stored.Values();
  payload.byte_size = StoredBytes(stored.dtype, values);
  payload.has_name = tensor.has_name;
  payload.name = tensor.name;
  payload.has_doc = tensor.has_doc;
  payload.doc = tensor.doc;
  if (tensor.has_raw || tensor.TypedCount() == 0) {
    stored.data = ExactBytes(tensor.raw, stored.dtype, values, place, "payload").data;
    return payload;
  }
  if (tensor.TypedCount() != static_cast<uint64_t>(values)) {
    place.Fail("expected ", values, " values in ", stored.dtype == DType::kFloat ? "float_data" : "int32_data",
               " for shape ", DimsText(tensor.shape), ", got ", tensor.TypedCount());
  }
  if (stored.dtype == DType::kFloat && tensor.float_pieces == 1) {
    stored.data = tensor.float_piece.data;
    return payload;
  }
  if (stored.dtype != DType::kFloat && (tensor.int32_lowest < 0 || tensor.int32_highest > 65535)) {
    place.Fail("expected 16-bit patterns from 0 to 65535 in int32_data, got ",
               tensor.int32_lowest < 0 ? tensor.int32_lowest : tensor.int32_highest);
  }
  payload.typed_field = static_cast<int64_t>(view->typed_fields.size());
  view->typed_fields.push_back({BodiesOf(tensor), stored.dtype});
  return payload;
}

DType StorageType(const AffineFields& affine, int64_t values, uint64_t bytes, const CachePlace& place) {
  if (affine.unknown_storage_type) {
    place.Fail("expected storage_type INT8, UINT8, INT4, UINT4, INT2 or UINT2, got the unknown number ",
               static_cast<int32_t>(affine.unknown_storage_value));
  }
  if (affine.has_storage_type) {
    const DType dtype = static_cast<DType>(affine.storage_type);
    if (!IsCodeType(dtype)) {
      place.Fail("expected storage_type INT8, UINT8, INT4, UINT4, INT2 or UINT2, got data type ", affine.storage_type);
    }
    if (affine.has_signed && affine.signed_storage != IsSignedCode(dtype)) {
      place.Fail("expected signed_storage to agree with storage_type ", DTypeName(dtype), ", got ",
                 affine.signed_storage ? "true" : "false");
    }
    return dtype;
  }
  if (!affine.has_signed)
    place.Fail("expected storage_type, got an affine layout without it and without signed_storage");
  static constexpr DType kBySize[2][3] = {{DType::kUInt8, DType::kUInt4, DType::kUInt2},
                                          {DType::kInt8, DType::kInt4, DType::kInt2}};
  DType found = DType::kUndefined;
  int fitting = 0;
  for (const DType dtype : kBySize[affine.signed_storage]) {
    if (static_cast<uint64_t>(StoredBytes(dtype, values)) != bytes) continue;
    found = dtype;
    ++fitting;
  }
  if (fitting != 1) {
    place.Fail("expected storage_type, or a size that exactly one of 8, 4 and 2 bits fits, got ", bytes, " bytes for ",
               values, " values");
  }
  return found;
}

// Number of pairs, and the strides to reach them; the shape of the parameters is checked against the axis.
int64_t ResolveAxis(const AffineFields& affine, const DimList& shape, const StoredPayload& stored,
                    const CachePlace& place, const char* what, AffineParameters* parameters) {
  const int64_t dims[4] = {stored.batch, stored.heads, stored.capacity, stored.width};
  if (!affine.has_axis) {
    if (affine.has_block_size) place.Fail("expected an axis with block_size ", affine.block_size, ", got none");
    if (shape.rank > 1 || (shape.rank == 1 && shape.dims[0] != 1)) {
      place.Fail("expected a scalar ", what, " (shape () or (1)) in a layout without axis, got shape ",
                 DimsText(shape));
    }
    return 1;
  }
  if (affine.axis < -4 || affine.axis > 3) place.Fail("expected axis from -4 to 3, got ", affine.axis);
  const int axis = static_cast<int>(affine.axis < 0 ? affine.axis + 4 : affine.axis);
  parameters->axis = axis;
  if (!affine.has_block_size) {
    if (shape.rank != 1 || shape.dims[0] != dims[axis]) {
      place.Fail("expected a ", what, " of shape (", dims[axis], "), one for each index of axis ", axis, " (",
                 kAxisNames[axis], "), got shape ", DimsText(shape));
    }
    parameters->stride[axis] = 1;
    return dims[axis];
  }
  if (affine.block_size == 0) place.Fail("expected block_size of at least 1, got 0");
  const uint64_t extent = static_cast<uint64_t>(dims[axis]);
  // A block longer than the axis is one block; this also keeps the number within 63 bits.
  const uint64_t block_size = affine.block_size > extent && extent > 0 ? extent : affine.block_size;
  parameters->block_size =
      block_size > static_cast<uint64_t>(kMaxPayloadValues) ? kMaxPayloadValues : static_cast<int64_t>(block_size);
  DimList expected;
  for (int i = 0; i < 4; ++i) {
    expected.Append(i == axis ? static_cast<int64_t>(extent / block_size + (extent % block_size != 0)) : dims[i]);
  }
  bool same = shape.rank == 4;
  for (int i = 0; i < 4; ++i) same &= shape.dims[i] == expected.dims[i];
  if (!same) {
    place.Fail("expected a ", what, " of shape ", DimsText(expected), " for blocks of ", affine.block_size,
               " along axis ", axis, ", got shape ", DimsText(shape));
  }
  parameters->stride[3] = 1;
  for (int i = 2; i >= 0; --i) parameters->stride[i] = parameters->stride[i + 1] * expected.dims[i + 1];
  return CountOf(expected);
}

// The scales as little-endian floats in one piece.
const uint8_t* ScaleBytes(const TensorFields& scale, int64_t pairs, const CachePlace& place, PagedCacheView* view) {
  CheckStorage(scale, true, place, "scale");
  if (scale.has_raw || scale.float_count == 0) {
    return ExactBytes(scale.raw, DType::kFloat, pairs, place, "scale").data;
  }
  if (scale.float_count != static_cast<uint64_t>(pairs)) {
    place.Fail("expected ", pairs, " values in the float_data of the scale, got ", scale.float_count);
  }
  if (scale.float_pieces == 1) return scale.float_piece.data;
  std::vector<uint8_t>& gathered = view->gathered_parameters.emplace_back();
  ForEachFloatPiece(BodiesOf(scale), [&](ByteSpan piece) { gathered.insert(gathered.end(), piece.data, piece.end()); });
  return gathered.data();
}

// The zero points as packed codes in one piece. int32_data holds one 8-bit code, or one byte of packed codes, a number.
const uint8_t* ZeroPointBytes(const TensorFields& zero_point, DType dtype, int64_t pairs, const CachePlace& place,
                              PagedCacheView* view) {
  CheckStorage(zero_point, false, place, "zero_point");
  if (zero_point.has_raw || zero_point.int32_count == 0) {
    return ExactBytes(zero_point.raw, dtype, pairs, place, "zero_point").data;
  }
  const int32_t lowest = dtype == DType::kInt8 ? -128 : 0;
  const int32_t highest = dtype == DType::kInt8 ? 127 : 255;
  const int64_t bytes = StoredBytes(dtype, pairs);
  if (zero_point.int32_count != static_cast<uint64_t>(bytes)) {
    place.Fail("expected ", bytes, " numbers in the int32_data of the zero_point, got ", zero_point.int32_count);
  }
  if (zero_point.int32_lowest < lowest || zero_point.int32_highest > highest) {
    place.Fail("expected numbers from ", lowest, " to ", highest, " in the int32_data of the zero_point, got ",
               zero_point.int32_lowest < lowest ? zero_point.int32_lowest : zero_point.int32_highest);
  }
  std::vector<uint8_t>& gathered = view->gathered_parameters.emplace_back();
  ForEachInt32(BodiesOf(zero_point), [&](int32_t value) { gathered.push_back(static_cast<uint8_t>(value)); });
  return ExactBytes({gathered.data(), gathered.size()}, dtype, pairs, place, "zero_point").data;
}

void ResolveParameters(const AffineFields& affine, const CachePlace& place, PayloadView* payload,
                       PagedCacheView* view) {
  StoredPayload* const stored = &payload->stored;
  AffineParameters& parameters = stored->affine;
  if (!affine.scale.present) place.Fail("expected a scale, got an affine layout without one");
  if (affine.scale.data_type != static_cast<int32_t>(DType::kFloat)) {
    place.Fail("expected a scale of float (data type 1), got data type ", affine.scale.data_type);
  }
  const int64_t pairs = ResolveAxis(affine, affine.scale.shape, *stored, place, "scale", &parameters);
  const uint8_t* scales = ScaleBytes(affine.scale, pairs, place, view);
  for (int64_t i = 0; i < pairs; ++i) {
    const float scale = LoadFloat(scales + 4 * i);
    if (!IsScale(scale)) {
      place.Fail("expected a positive and finite scale, got ", scale, pairs > 1 ? " at position " : "",
                 pairs > 1 ? std::to_string(i) : "");
    }
  }
  const uint8_t* zero_points = nullptr;
  if (affine.zero_point.present) {
    if (affine.zero_point.data_type != static_cast<int32_t>(stored->dtype)) {
      place.Fail("expected a zero_point of the storage type ", DTypeName(stored->dtype), " (data type ",
                 static_cast<int32_t>(stored->dtype), "), got data type ", affine.zero_point.data_type);
    }
    ResolveAxis(affine, affine.zero_point.shape, *stored, place, "zero_point", &parameters);
    zero_points = ZeroPointBytes(affine.zero_point, stored->dtype, pairs, place, view);
  }
  if (pairs == 0) return;
  parameters.first_scale = LoadFloat(scales);
  parameters.first_zero_point = zero_points == nullptr ? 0 : CodeAt(zero_points, stored->dtype, 0);
  if (parameters.axis < 0) {
    if (affine.scale.float_pieces <= 1) payload->scale = scales;
    return;
  }
  parameters.scales = scales;
  parameters.zero_points = zero_points;
}

PayloadView ResolveAffine(const EncodedFields& value, const CachePlace& place, PagedCacheView* view) {
  PayloadView payload;
  StoredPayload& stored = payload.stored;
  if (value.layout != 1) {
    place.Fail("expected an encoded payload with the affine layout, got ",
               value.layout == 2 ? "struct_type" : "one without a layout");
  }
  if (value.data_location != 0) place.Fail("expected the values of the payload inline, got external data");
  const LogicalTypeFields& type = value.logical_type;
  if (!type.present || type.kind != 1) {
    place.Fail("expected a logical_type that is a tensor type, got ", type.present ? "another type" : "none");
  }
  if (type.elem_type != static_cast<int32_t>(DType::kFloat)) {
    place.Fail("expected a logical_type of float (data type 1), got data type ", type.elem_type);
  }
  if (!type.has_shape || !type.concrete) {
    place.Fail("expected a logical_type with four numbers as its shape, got ",
               type.has_shape ? "a dimension that is no number" : "no shape");
  }
  SetShape(type.shape, place, &stored);
  const int64_t values = stored.Values();
  stored.dtype = StorageType(value.affine, values, value.raw.size, place);
  payload.byte_size = StoredBytes(stored.dtype, values);
  stored.data = ExactBytes(value.raw, stored.dtype, values, place, "payload").data;
  ResolveParameters(value.affine, place, &payload, view);
  payload.has_name = value.has_name;
  payload.name = value.name;
  payload.has_doc = value.has_doc;
  payload.doc = value.doc;
  return payload;
}

}  // namespace

PayloadView ResolvePayload(const SideFields& fields, const CachePlace& place, PagedCacheView* view) {
  if (fields.member == 0) place.Fail("expected a payload, got none");
  return fields.encoded ? ResolveAffine(fields.value, place, view) : ResolveDense(fields.tensor, place, view);
}

}  // namespace onnx_ai_rt
