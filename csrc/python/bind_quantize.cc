// Conversion between payload formats, for tests and benchmarks.
#include <algorithm>
#include <array>
#include <atomic>
#include <optional>

#include "kernels/error.h"
#include "kernels/quantize.h"
#include "python/bindings.h"
#include "python/buffers.h"

namespace py = pybind11;

namespace onnx_ai_rt {
namespace {

DType ToDType(int number) {
  const DType dtype = static_cast<DType>(number);
  if (!IsCodeType(dtype) && !IsDenseType(dtype)) Fail("expected the number of one of the nine formats, got ", number);
  return dtype;
}

StoredPayload Describe(const PyBytes& data, int dtype, const std::array<int64_t, 4>& shape) {
  StoredPayload payload;
  payload.data = data.data();
  payload.dtype = ToDType(dtype);
  payload.batch = shape[0];
  payload.heads = shape[1];
  payload.capacity = shape[2];
  payload.width = shape[3];
  if (*std::min_element(shape.begin(), shape.end()) < 0 || ElementCount({shape.begin(), shape.end()}) >> 57 != 0 ||
      static_cast<uint64_t>(StoredBytes(payload.dtype, payload.Values())) != data.size()) {
    Fail("expected the bytes of a payload of shape ", ShapeText({shape.begin(), shape.end()}), ", got ", data.size());
  }
  return payload;
}

void SetParameters(int axis, int64_t block_size, const PyBytes& scales, const PyBytes& zero_points,
                   StoredPayload* payload) {
  AffineParameters& affine = payload->affine;
  const int64_t dims[4] = {payload->batch, payload->heads, payload->capacity, payload->width};
  int64_t pairs = 1;
  if (axis < -1 || axis > 3 || block_size < 0) Fail("expected axis from -1 to 3 and block_size of at least 0");
  affine.axis = axis;
  if (axis >= 0 && block_size == 0) {
    affine.stride[axis] = 1;
    pairs = dims[axis];
  } else if (axis >= 0) {
    affine.block_size = block_size;
    for (int i = 3; i >= 0; --i) {
      affine.stride[i] = pairs;
      pairs *= i == axis ? (dims[i] + block_size - 1) / block_size : dims[i];
    }
  }
  if (scales.size() != static_cast<size_t>(4 * pairs) ||
      zero_points.size() != static_cast<size_t>(StoredBytes(payload->dtype, pairs))) {
    Fail("expected ", pairs, " scales and zero points, got ", scales.size(), " and ", zero_points.size(), " bytes");
  }
  if (pairs == 0) return;
  affine.first_scale = LoadFloat(scales.data());
  affine.first_zero_point = CodeAt(zero_points.data(), payload->dtype, 0);
  if (axis < 0) return;
  affine.scales = scales.data();
  affine.zero_points = zero_points.data();
}

// Rows are cut into `parts`, to be converted by as many threads.
py::array_t<uint8_t> ConvertPayload(const py::object& data, int dtype, const std::array<int64_t, 4>& shape,
                                    int64_t length, int target_dtype, float target_scale, int32_t target_zero_point,
                                    int64_t capacity, int axis, int64_t block_size, const py::object& scales,
                                    const py::object& zero_points, int parts, const std::optional<py::object>& out) {
  const PyBytes bytes(data, "data");
  const PyBytes scale_bytes(scales, "scales");
  const PyBytes zero_bytes(zero_points, "zero_points");
  StoredPayload source = Describe(bytes, dtype, shape);
  if (source.IsAffine()) SetParameters(axis, block_size, scale_bytes, zero_bytes, &source);
  const Encoding target{ToDType(target_dtype), target_scale, target_zero_point};
  if (length < 0 || length > source.capacity || length > capacity) Fail("expected a length within the capacities");
  const int64_t values = source.batch * source.heads * capacity * source.width;
  const int64_t size = StoredBytes(target.dtype, values);
  const py::object result = out ? *out : py::array_t<uint8_t>(size);
  const PyBytes to(result, "out", true);
  if (to.size() < static_cast<size_t>(size)) Fail("expected an output of ", size, " bytes, got ", to.size());

  const int64_t rows = source.batch * source.heads * capacity;
  const int64_t step = (rows / std::max(parts, 1) / kRowAlignment + 1) * kRowAlignment;
  std::atomic<Conversion> failure{Conversion::kDone};
  {
    const py::gil_scoped_release release;
    ThreadExecutor threads(parts);
    threads.ParallelFor(static_cast<size_t>((rows + step - 1) / step), [&](size_t i) {
      const int64_t begin = static_cast<int64_t>(i) * step;
      const Conversion done =
          ConvertRows(source, length, target, capacity, begin, std::min(rows, begin + step), to.data());
      if (done != Conversion::kDone) failure = done;
    });
  }
  if (failure != Conversion::kDone) {
    Fail(failure.load() == Conversion::kNotFinite ? "not finite: " : "overflow: ",
         DescribeFailure(source, length, target));
  }
  return result;
}

}  // namespace

void BindQuantize(py::module_& m) {
  m.def("convert_payload", &ConvertPayload, py::arg("data"), py::arg("dtype"), py::arg("shape"), py::arg("length"),
        py::arg("target_dtype"), py::arg("target_scale") = 1.0f, py::arg("target_zero_point") = 0, py::arg("capacity"),
        py::arg("axis") = -1, py::arg("block_size") = 0, py::arg("scales") = py::bytes("\0\0\x80\x3f", 4),
        py::arg("zero_points") = py::bytes("\0", 1), py::arg("parts") = 1, py::arg("out") = py::none(),
        R"(Bytes of a payload in another format, as uint8 array.

Args:
    data: bytes of the payload, of any alignment.
    dtype: onnx.TensorProto.DataType of its dense values or of its codes.
    shape: batch, heads, capacity, width.
    length: valid rows; the others become the encoding of 0.
    target_dtype, target_scale, target_zero_point: the new format.
    capacity: of the result.
    axis, block_size: where the parameters of the source differ; -1 and 0 for nowhere.
    scales: float32, little-endian bytes.
    zero_points: packed codes.
    parts: into which the rows are cut, each converted by a thread of its own.
    out: a buffer for the result, which is then returned.

Raises:
    ValueError: for arguments that do not fit, and for values that are or become infinite or NaN.)");
}

}  // namespace onnx_ai_rt
