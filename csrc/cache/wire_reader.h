// Reads the protobuf wire format in place: bounds-checked, 64-bit sizes, no copy and no allocation.
//
// It accepts what protobuf's own parsers accept: non-minimal varints (up to 10 bytes; tags and lengths up to 5, lengths
// longer only where the value needs it), groups, nesting of groups and messages up to 100. It refuses field number 0,
// wire types 6 and 7, unmatched ends of groups and everything that runs past its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace onnx_ai_rt {

struct ByteSpan {
  const uint8_t* data = nullptr;
  size_t size = 0;

  const uint8_t* end() const { return data + size; }
};

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kGroupStart = 3, kGroupEnd = 4, kFixed32 = 5 };

// Thrown where the bytes are no protobuf message. `at` points into the buffer that was read; the caller, who knows
// which message it was reading, makes the sentence.
struct WireError {
  const char* reason;
  const uint8_t* at;
};

// Nesting that protobuf allows below the outermost message.
inline constexpr int kWireDepth = 100;

struct WireField {
  uint32_t number = 0;
  WireType type = WireType::kVarint;
  uint64_t varint = 0;  // the value of a varint
  ByteSpan bytes;       // the content of a length-delimited field, the 4 or 8 bytes of a fixed one, else empty
  ByteSpan whole;       // tag and content
};

class WireReader {
 public:
  // depth: how many levels may still be nested in this message.
  explicit WireReader(ByteSpan bytes, int depth = kWireDepth) : at_(bytes.data), end_(bytes.end()), depth_(depth) {}

  int depth() const { return depth_; }
  bool AtEnd() const { return at_ == end_; }

  // Reads one field; a group is read to its end and given as one field. False at the end of the message.
  bool Next(WireField* field) {
    if (at_ == end_) return false;
    const uint8_t* begin = at_;
    ReadTag(field);
    field->bytes = {};
    switch (field->type) {
      case WireType::kVarint: field->varint = ReadVarint(); break;
      case WireType::kFixed64: field->bytes = Take(8); break;
      case WireType::kFixed32: field->bytes = Take(4); break;
      case WireType::kBytes: field->bytes = Take(ReadLength()); break;
      case WireType::kGroupStart: SkipGroup(field->number); break;
      case WireType::kGroupEnd: throw WireError{"the end of a group that was not begun", begin};
    }
    field->whole = {begin, static_cast<size_t>(at_ - begin)};
    return true;
  }

  // One number of a packed field.
  uint64_t ReadVarint() {
    if (at_ != end_ && *at_ < 0x80) return *at_++;
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at_ == end_) throw WireError{"a number that is cut off", at_};
      const uint8_t byte = *at_++;
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;  // bits beyond the 64th fall off, as in protobuf
      if (byte < 0x80) return value;
    }
    throw WireError{"a number of more than 10 bytes", at_ - 10};
  }

 private:
  void ReadTag(WireField* field) {
    const uint8_t* begin = at_;
    uint64_t tag = 0;
    for (int shift = 0;; shift += 7) {
      if (shift == 35) throw WireError{"a field tag of more than 5 bytes", begin};
      if (at_ == end_) throw WireError{"a field tag that is cut off", begin};
      const uint8_t byte = *at_++;
      tag |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    if (tag > UINT32_MAX) throw WireError{"a field tag of more than 32 bits", begin};
    if (tag < 8) throw WireError{"field number 0", begin};
    if ((tag & 7) > 5) throw WireError{"a wire type that does not exist", begin};
    field->number = static_cast<uint32_t>(tag >> 3);
    field->type = static_cast<WireType>(tag & 7);
  }

  uint64_t ReadLength() {
    const uint8_t* begin = at_;
    const uint64_t length = ReadVarint();
    if (at_ - begin > 5 && length < (uint64_t{1} << 35)) throw WireError{"a length of more than 5 bytes", begin};
    return length;
  }

  ByteSpan Take(uint64_t size) {
    if (size > static_cast<uint64_t>(end_ - at_)) throw WireError{"a field that is longer than what holds it", at_};
    const ByteSpan taken{at_, static_cast<size_t>(size)};
    at_ += size;
    return taken;
  }

  void SkipGroup(uint32_t number) {
    uint32_t open[kWireDepth];  // field numbers of the groups around
    int count = 0;
    if (depth_ <= 0) throw WireError{"messages nested more than 100 deep", at_};
    open[count++] = number;
    WireField inner;
    while (count > 0) {
      const uint8_t* begin = at_;
      if (at_ == end_) throw WireError{"a group that does not end", at_};
      ReadTag(&inner);
      switch (inner.type) {
        case WireType::kVarint: ReadVarint(); break;
        case WireType::kFixed64: Take(8); break;
        case WireType::kFixed32: Take(4); break;
        case WireType::kBytes: Take(ReadLength()); break;
        case WireType::kGroupStart:
          if (count >= depth_) throw WireError{"messages nested more than 100 deep", begin};
          open[count++] = inner.number;
          break;
        case WireType::kGroupEnd:
          if (open[--count] != inner.number) throw WireError{"the end of another group than the one begun", begin};
          break;
      }
    }
  }

  const uint8_t* at_;
  const uint8_t* end_;
  int depth_;
};

// Unaligned little-endian loads.
inline uint32_t LoadU32(const uint8_t* p) {
  return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 |
         static_cast<uint32_t>(p[3]) << 24;
}

inline float LoadFloat(const uint8_t* p) {
  const uint32_t bits = LoadU32(p);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace onnx_ai_rt
