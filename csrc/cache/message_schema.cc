#include "cache/message_schema.h"

#include <iterator>

namespace onnx_ai_rt {
namespace {

constexpr FieldSchema kTensorFields[] = {
    {1, ContentKind::kPackedVarint, nullptr},    // dims
    {3, ContentKind::kMessage, &kLeafSchema},    // segment
    {4, ContentKind::kPackedFixed32, nullptr},   // float_data
    {5, ContentKind::kPackedVarint, nullptr},    // int32_data
    {7, ContentKind::kPackedVarint, nullptr},    // int64_data
    {10, ContentKind::kPackedFixed64, nullptr},  // double_data
    {11, ContentKind::kPackedVarint, nullptr},   // uint64_data
    {13, ContentKind::kMessage, &kLeafSchema},   // external_data
    {16, ContentKind::kMessage, &kLeafSchema},   // metadata_props
};

constexpr FieldSchema kShapeFields[] = {{1, ContentKind::kMessage, &kLeafSchema}};  // dim
constexpr MessageSchema kShapeSchema{kShapeFields, std::size(kShapeFields)};

constexpr FieldSchema kTensorTypeFields[] = {{2, ContentKind::kMessage, &kShapeSchema}};  // shape

constexpr FieldSchema kElementTypeFields[] = {{1, ContentKind::kMessage, &kTypeSchema}};  // elem_type
constexpr MessageSchema kElementTypeSchema{kElementTypeFields, std::size(kElementTypeFields)};

constexpr FieldSchema kMapTypeFields[] = {{2, ContentKind::kMessage, &kTypeSchema}};  // value_type
constexpr MessageSchema kMapTypeSchema{kMapTypeFields, std::size(kMapTypeFields)};

constexpr FieldSchema kTypeFields[] = {
    {1, ContentKind::kMessage, &kTensorTypeSchema},   // tensor_type
    {4, ContentKind::kMessage, &kElementTypeSchema},  // sequence_type
    {5, ContentKind::kMessage, &kMapTypeSchema},      // map_type
    {7, ContentKind::kMessage, &kLeafSchema},         // opaque_type
    {8, ContentKind::kMessage, &kTensorTypeSchema},   // sparse_tensor_type
    {9, ContentKind::kMessage, &kElementTypeSchema},  // optional_type
};

}  // namespace

const MessageSchema kTensorSchema{kTensorFields, std::size(kTensorFields)};
const MessageSchema kTypeSchema{kTypeFields, std::size(kTypeFields)};
const MessageSchema kTensorTypeSchema{kTensorTypeFields, std::size(kTensorTypeFields)};
const MessageSchema kLeafSchema{nullptr, 0};

void CheckField(const MessageSchema& schema, const WireField& field, int depth) {
  if (field.type != WireType::kBytes) return;
  for (size_t i = 0; i < schema.count; ++i) {
    const FieldSchema& known = schema.fields[i];
    if (known.number != field.number) continue;
    switch (known.kind) {
      case ContentKind::kMessage: CheckMessage(*known.message, field.bytes, depth); break;
      case ContentKind::kPackedVarint: {
        WireReader numbers(field.bytes, 0);
        while (!numbers.AtEnd()) numbers.ReadVarint();
        break;
      }
      case ContentKind::kPackedFixed32:
        if (field.bytes.size % 4 != 0) throw WireError{"a list of 4-byte numbers that is cut off", field.bytes.data};
        break;
      case ContentKind::kPackedFixed64:
        if (field.bytes.size % 8 != 0) throw WireError{"a list of 8-byte numbers that is cut off", field.bytes.data};
        break;
    }
    return;
  }
}

void CheckMessage(const MessageSchema& schema, ByteSpan content, int depth) {
  WireReader reader = Nested(content, depth);
  WireField field;
  while (reader.Next(&field)) CheckField(schema, field, reader.depth());
}

}  // namespace onnx_ai_rt
