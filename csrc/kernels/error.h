// The one exception that the kernels and the wire format throw at a caller's mistake.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace onnx_ai_rt {

// Its text is one sentence: operator, input, place, expected, got. The adapters (ORT, Python) turn it into a status
// or an exception of their own.
class InvalidArgument : public std::runtime_error {
 public:
  explicit InvalidArgument(const std::string& message) : std::runtime_error(message) {}
};

// Throws InvalidArgument with the concatenation of `parts`.
template <typename... Parts>
[[noreturn]] void Fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw InvalidArgument(text.str());
}

}  // namespace onnx_ai_rt
