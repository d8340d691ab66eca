// Python buffers (bytes, memoryview, numpy arrays) as bytes, without a copy.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "cache/wire_reader.h"
#include "kernels/error.h"

namespace onnx_ai_rt {

// Holds a contiguous buffer while it lives.
class PyBytes {
 public:
  // Throws InvalidArgument where the object has no contiguous (or no writable) buffer.
  PyBytes(const pybind11::handle& object, const std::string& name, bool writable = false) {
    const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) != 0) {
      PyErr_Clear();
      Fail(name, ": expected a ", writable ? "writable " : "", "contiguous buffer of bytes, got ",
           std::string(pybind11::str(pybind11::type::handle_of(object))));
    }
  }
  ~PyBytes() { PyBuffer_Release(&buffer_); }
  PyBytes(const PyBytes&) = delete;
  PyBytes& operator=(const PyBytes&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(buffer_.buf); }
  size_t size() const { return static_cast<size_t>(buffer_.len); }
  ByteSpan span() const { return {data(), size()}; }

 private:
  Py_buffer buffer_{};
};

}  // namespace onnx_ai_rt
