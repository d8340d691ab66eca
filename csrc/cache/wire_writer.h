// Writes the protobuf wire format into a buffer whose size was computed with the *Size functions beforehand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cache/wire_reader.h"

namespace onnx_ai_rt {

inline constexpr size_t VarintSize(uint64_t value) {
  size_t size = 1;
  while (value >= 0x80) {
    value >>= 7;
    ++size;
  }
  return size;
}

// Field numbers are below 16 in all messages that we write: tags are one byte.
inline constexpr size_t VarintFieldSize(uint64_t value) { return 1 + VarintSize(value); }
inline constexpr size_t BytesFieldSize(size_t content) { return 1 + VarintSize(content) + content; }

class WireWriter {
 public:
  explicit WireWriter(uint8_t* out) : at_(out) {}

  uint8_t* at() const { return at_; }

  void Varint(uint64_t value) {
    while (value >= 0x80) {
      *at_++ = static_cast<uint8_t>(value | 0x80);
      value >>= 7;
    }
    *at_++ = static_cast<uint8_t>(value);
  }

  void VarintField(uint32_t number, uint64_t value) {
    *at_++ = static_cast<uint8_t>(number << 3);
    Varint(value);
  }

  // Tag and length of a length-delimited field (bytes, string, message); the content follows.
  void BytesHeader(uint32_t number, size_t size) {
    *at_++ = static_cast<uint8_t>(number << 3 | 2);
    Varint(size);
  }

  void Bytes(const void* data, size_t size) {
    if (size != 0) std::memcpy(at_, data, size);
    at_ += size;
  }

  void BytesField(uint32_t number, ByteSpan content) {
    BytesHeader(number, content.size);
    Bytes(content.data, content.size);
  }

  // Leaves room for content that somebody else fills, and returns where it goes.
  uint8_t* Reserve(size_t size) {
    uint8_t* place = at_;
    at_ += size;
    return place;
  }

 private:
  uint8_t* at_;
};

}  // namespace onnx_ai_rt
