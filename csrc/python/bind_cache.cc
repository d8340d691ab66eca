// The wire format: headers of a serialized cache, and QuantizePagedCache on bytes.
#include <optional>

#include "cache/encoding_inputs.h"
#include "cache/paged_cache.h"
#include "cache/quantize_cache.h"
#include "kernels/error.h"
#include "python/bindings.h"
#include "python/buffers.h"

namespace py = pybind11;

namespace onnx_ai_rt {
namespace {

py::dict PayloadDict(const PayloadView& payload, const uint8_t* base) {
  py::dict dict;
  const StoredPayload& stored = payload.stored;
  dict["data_type"] = static_cast<int>(stored.dtype);
  dict["shape"] = py::make_tuple(stored.batch, stored.heads, stored.capacity, stored.width);
  dict["nbytes"] = payload.byte_size;
  // Where the values lie in the input; None where they are in pieces or there are none.
  dict["offset"] = stored.data == nullptr ? py::object(py::none()) : py::int_(stored.data - base);
  const auto text = [](bool has, ByteSpan span) -> py::object {
    if (!has) return py::none();
    return py::bytes(reinterpret_cast<const char*>(span.data), span.size);
  };
  dict["name"] = text(payload.has_name, payload.name);
  dict["doc_string"] = text(payload.has_doc, payload.doc);
  if (!stored.IsAffine()) return dict;
  const AffineParameters& affine = stored.affine;
  dict["scale"] = affine.first_scale;
  dict["zero_point"] = affine.first_zero_point;
  dict["axis"] = affine.axis < 0 ? py::object(py::none()) : py::int_(affine.axis);
  dict["block_size"] = affine.block_size == 0 ? py::object(py::none()) : py::int_(affine.block_size);
  return dict;
}

py::list ParseToList(const py::object& cache, const std::string& op_name, const std::string& input_name, bool is_run) {
  const PyBytes bytes(cache, op_name + ": input " + input_name);
  PagedCacheView view;
  {
    const py::gil_scoped_release release;
    view = (is_run ? ParsePageRun : ParsePagedCache)(bytes.span(), op_name, input_name);
  }
  py::list blocks;
  for (const BlockView& block : view.blocks) {
    py::dict dict;
    dict["start"] = block.start;
    dict["length"] = block.length;
    dict["begin"] = block.whole.data - bytes.data();
    dict["end"] = block.whole.end() - bytes.data();
    dict["key"] = PayloadDict(block.key(), bytes.data());
    dict["value"] = PayloadDict(block.value(), bytes.data());
    blocks.append(dict);
  }
  return blocks;
}

py::array QuantizePagedCache(const py::object& cache, const py::array_t<int64_t, py::array::c_style>& block_indices,
                             float key_scale, int key_type, int key_zero_point, float value_scale, int value_type,
                             int value_zero_point, int threads, const std::optional<py::array_t<uint8_t>>& out) {
  const std::string op_name = "ai.rt::QuantizePagedCache";
  const PyBytes bytes(cache, op_name + ": input cache");
  if (block_indices.ndim() != 1) Fail(op_name, ": input block_indices: expected rank 1, got ", block_indices.ndim());
  const Encoding key = MakeEncoding(op_name, "key", key_scale, static_cast<DType>(key_type), key_zero_point);
  const Encoding value = MakeEncoding(op_name, "value", value_scale, static_cast<DType>(value_type), value_zero_point);
  QuantizeCachePlan plan;
  {
    const py::gil_scoped_release release;
    plan = PlanQuantizeCache(op_name, bytes.span(), block_indices.data(), block_indices.size(), key, value);
  }
  const auto size = static_cast<py::ssize_t>(plan.output_size);
  if (out && out->size() < size) Fail(op_name, ": out: expected at least ", size, " bytes, got ", out->size());
  const py::array result = out ? py::array(*out) : py::array_t<uint8_t>(size);
  const PyBytes to(result, op_name + ": out", true);
  {
    const py::gil_scoped_release release;
    ThreadExecutor executor(threads);
    RunQuantizeCache(plan, to.data(), executor);
  }
  return out ? py::array(result[py::slice(0, size, 1)]) : result;
}

}  // namespace

void BindCache(py::module_& m) {
  m.def("parse_paged_cache", &ParseToList, py::arg("cache"), py::arg("op_name") = "paged cache",
        py::arg("input_name") = "cache", py::arg("is_run") = false,
        R"(Headers of all pages of a serialized cache, validated; payloads stay unread.

Args:
    cache: bytes, or any contiguous buffer of them; 0 bytes are the empty cache.
    op_name: the start of error messages.
    input_name: the name of the input in them.
    is_run: the bytes are some pages out of a cache, and begin at whatever token the first says.

Returns:
    a list of dicts: start, length, begin and end (bytes of the page in the cache, tag included), key and value
    (dicts: data_type, shape, nbytes, offset of the values, name, doc_string; of affine pages the first scale and
    zero_point, axis and block_size).

Raises:
    ValueError: for bytes that are no valid cache, in one sentence with operator, input, block, side.)");
  m.def("quantize_paged_cache", &QuantizePagedCache, py::arg("cache"), py::arg("block_indices"), py::arg("key_scale"),
        py::arg("key_type"), py::arg("key_zero_point"), py::arg("value_scale"), py::arg("value_type"),
        py::arg("value_zero_point"), py::arg("threads") = 1, py::arg("out") = py::none(),
        R"(ai.rt::QuantizePagedCache on bytes.

Args:
    cache: bytes, or any contiguous buffer of them.
    block_indices: int64 array of the pages to convert.
    key_scale, value_scale: positive and finite.
    key_type, value_type: onnx.TensorProto.DataType of the new format: INT8, UINT8, INT4, UINT4, INT2, UINT2, FLOAT,
        FLOAT16 or BFLOAT16.
    key_zero_point, value_zero_point: codes; ignored for dense formats.
    threads: how many work on it, this one included.
    out: a uint8 array to write into, as large as the result or larger; a view of it is returned.

Returns:
    the new cache, a uint8 array.

Raises:
    ValueError: as the operator.)");
}

}  // namespace onnx_ai_rt
