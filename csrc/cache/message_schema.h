// The parts of onnx's messages that we do not use but must check: protobuf refuses a message with a broken field
// anywhere below it, so we walk them too.
#pragma once

#include <cstddef>

#include "cache/wire_reader.h"

namespace onnx_ai_rt {

// What a length-delimited field of a known number must hold. Other wire types, other numbers and strings hold nothing
// that could be broken.
enum class ContentKind : uint8_t { kMessage, kPackedVarint, kPackedFixed32, kPackedFixed64 };

struct MessageSchema;

struct FieldSchema {
  uint32_t number;
  ContentKind kind;
  const MessageSchema* message;  // of kMessage
};

struct MessageSchema {
  const FieldSchema* fields;
  size_t count;
};

extern const MessageSchema kTensorSchema;      // onnx.TensorProto
extern const MessageSchema kTypeSchema;        // onnx.TypeProto
extern const MessageSchema kTensorTypeSchema;  // onnx.TypeProto.Tensor
extern const MessageSchema kLeafSchema;        // a message without fields that need a check

// depth: that of the reader of the message that holds `content`. Both throw WireError.
void CheckMessage(const MessageSchema& schema, ByteSpan content, int depth);
void CheckField(const MessageSchema& schema, const WireField& field, int depth);

// The reader of a message inside one of the given depth.
inline WireReader Nested(ByteSpan content, int depth) {
  if (depth <= 0) throw WireError{"messages nested more than 100 deep", content.data};
  return WireReader(content, depth - 1);
}

}  // namespace onnx_ai_rt
