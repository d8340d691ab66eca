"""What makes a paged cache valid, and what its payloads hold: over the messages, in plain numpy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import TensorProto

from onnx_ai_rt.proto import AffineLayoutProto, EncodedValueProto, PagedCacheBlockProto, PagedCacheProto
from onnx_ai_rt.reference import wire
from onnx_ai_rt.reference.quantize import (
    FORMATS,
    Array,
    FloatArray,
    Format,
    dequantize,
    expand_parameters,
    find_format,
    spare_bits,
    unpack_codes,
)

_TYPED_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")

_STORAGE_TYPE = AffineLayoutProto.DESCRIPTOR.fields_by_name["storage_type"].number

MAX_MESSAGE_BYTES = (1 << 31) - 1  # of Python's protobuf


class CacheError(ValueError):
    """A paged cache that is not valid, in one sentence: where, what was expected and what is there."""


@dataclasses.dataclass(frozen=True)
class Payload:
    """The checked header of one payload, and how to read it."""

    place: str  # for messages
    format: Format
    shape: tuple[int, int, int, int]  # batch, kv_heads, capacity, width
    length: int  # valid rows
    message: Any  # TensorProto or EncodedValueProto

    @property
    def nbytes(self) -> int:
        return self.format.nbytes(int(np.prod(self.shape, dtype=object)))

    def parameters(self) -> tuple[Array, Array]:
        """Scales and zero points of an affine payload, in the shape that they are stored in."""
        affine = self.message.affine
        scale = _tensor_array(affine.scale, FORMATS["FLOAT"])
        if not affine.HasField("zero_point"):
            return scale, np.zeros(scale.shape, np.int32)
        return scale, _tensor_array(affine.zero_point, self.format)

    def decode(self) -> FloatArray:
        """The valid rows, ``[batch, kv_heads, length, width]``.

        Raises:
            CacheError: for NaN or infinity, stored or by decoding.
        """
        values = self.decode_any()
        finite = np.isfinite(values)
        if not finite.all():
            where = [int(i) for i in np.argwhere(~finite)[0]]
            raise CacheError(
                f"{self.place}: expected finite values in the valid rows, got {values[tuple(where)]} at {where}"
            )
        return values

    def decode_any(self) -> FloatArray:
        """The valid rows, NaN and infinity too."""
        rows = (slice(None), slice(None), slice(0, self.length))
        if self.format.is_affine:
            affine = self.message.affine
            codes = unpack_codes(self.message.raw_data, self.format, int(np.prod(self.shape))).reshape(self.shape)
            axis = affine.axis if affine.HasField("axis") else None
            block_size = affine.block_size if affine.HasField("block_size") else None
            scale, zero_point = (expand_parameters(p, self.shape, axis, block_size)[rows] for p in self.parameters())
            values = dequantize(codes[rows], scale, zero_point)
        else:
            values = _tensor_array(self.message, self.format).reshape(self.shape)[rows].astype(np.float32)
        return values


@dataclasses.dataclass(frozen=True)
class Block:
    """A checked page."""

    start: int
    length: int
    key: Payload
    value: Payload


def parse(data: bytes | Array, place: str = "paged cache") -> PagedCacheProto:
    """Parses serialized bytes, or a rank-1 uint8 array of them; 0 bytes are the empty cache.

    Raises:
        CacheError: for bytes that are no message, and for 2 GiB and more, which Python's protobuf cannot parse.
    """
    nbytes = len(data)
    if nbytes > MAX_MESSAGE_BYTES:
        raise CacheError(f"{place}: Python's protobuf parses at most {MAX_MESSAGE_BYTES} bytes, got {nbytes}")
    try:
        return PagedCacheProto.FromString(bytes(data))
    except DecodeError as error:
        raise CacheError(f"{place}: expected a serialized PagedCacheProto, got other bytes ({error})") from error


def validate(cache: PagedCacheProto, place: str = "paged cache") -> list[Block]:
    """Checks a whole cache; returns its pages.

    Args:
        cache: any message of the type.
        place: the start of error messages, as "QuantizePagedCache: input cache".

    Raises:
        CacheError: naming the place, the block, the side, what was expected and what is there.
    """
    blocks: list[Block] = []
    end = 0
    for index, message in enumerate(cache.blocks):
        block = check_block(message, f"{place}, block {index}", end)
        if blocks:
            _check_same(block, blocks[0], f"{place}, block {index}")
        blocks.append(block)
        end += block.length
    return blocks


def check_block(block: PagedCacheBlockProto, place: str, start: int) -> Block:
    """Checks one page alone, which is to begin at token `start`. Raises CacheError."""
    if block.start != start:
        raise CacheError(f"{place}: expected start {start}, the end of the block before, got {block.start}")
    if block.length < 1:
        raise CacheError(f"{place}: expected a length of 1 or more, got {block.length}")
    if start + block.length > np.iinfo(np.int64).max:
        raise CacheError(f"{place}: expected an end that fits 64 bits, got {start} + {block.length}")
    key = _check_side(block, "key", place)
    value = _check_side(block, "value", place)
    for i, what in enumerate(("batch", "kv_heads", "capacity")):
        if key.shape[i] != value.shape[i]:
            raise CacheError(f"{place}: expected one {what} for key and value, got {key.shape[i]} and {value.shape[i]}")
    return Block(block.start, block.length, key, value)


def _check_same(block: Block, first: Block, place: str) -> None:
    for side in ("key", "value"):
        shape, expected = getattr(block, side).shape, getattr(first, side).shape
        for i, what in ((0, "batch"), (1, "kv_heads"), (3, "width")):
            if shape[i] != expected[i]:
                raise CacheError(f"{place}, {side}: expected {what} {expected[i]} as in block 0, got {shape[i]}")


def _check_side(block: PagedCacheBlockProto, side: str, place: str) -> Payload:
    place = f"{place}, {side}"
    which = block.WhichOneof("key_payload" if side == "key" else "value_payload")
    if which is None:
        raise CacheError(f"{place}: expected {side} or encoded_{side}, got neither")
    message = getattr(block, which)
    format, shape = _check_dense(message, place) if which == side else _check_encoded(message, place)
    if block.length > shape[2]:
        raise CacheError(f"{place}: expected a capacity of at least the length {block.length}, got {shape[2]}")
    return Payload(place, format, shape, block.length, message)


def _check_shape(dims: list[int], place: str) -> tuple[int, int, int, int]:
    if len(dims) != 4 or min(dims) < 0:
        raise CacheError(f"{place}: expected the shape [batch, kv_heads, capacity, width], got {dims}")
    return dims[0], dims[1], dims[2], dims[3]


def _check_inline(message: Any, place: str) -> None:
    if message.data_location == TensorProto.EXTERNAL:
        raise CacheError(f"{place}: expected inline data, got external data")


def _check_dense(tensor: TensorProto, place: str) -> tuple[Format, tuple[int, int, int, int]]:
    format = find_format(tensor.data_type)
    if format is None or format.is_affine:
        got = _type_name(tensor.data_type)
        raise CacheError(f"{place}: expected the data type FLOAT, FLOAT16 or BFLOAT16, got {got}")
    shape = _check_shape(list(tensor.dims), place)
    _check_tensor_data(tensor, format, place)
    return format, shape


def _check_tensor_data(tensor: TensorProto, format: Format, place: str) -> None:
    """Checks that a tensor holds the bytes or numbers that its dims and format ask for."""
    _check_inline(tensor, place)
    elements = int(np.prod(np.array(tensor.dims, object), dtype=object))
    typed_name = "float_data" if format.data_type == TensorProto.FLOAT else "int32_data"
    typed = getattr(tensor, typed_name)
    for other in _TYPED_FIELDS:
        if other != typed_name and getattr(tensor, other):
            raise CacheError(f"{place}: expected {format.name} in raw_data or {typed_name}, got {other}")
    if typed and tensor.HasField("raw_data"):
        raise CacheError(f"{place}: expected raw_data or {typed_name}, got both")
    if typed:
        # Codes of less than a byte are packed in the typed field too, one byte a number.
        expected = format.nbytes(elements) if format.bits < 8 else elements
        if len(typed) != expected:
            raise CacheError(f"{place}: expected {expected} numbers in {typed_name}, got {len(typed)}")
        if typed_name == "int32_data":
            _check_numbers(np.array(typed, np.int64), format, place)
    elif len(tensor.raw_data) != format.nbytes(elements):
        got = len(tensor.raw_data)
        raise CacheError(
            f"{place}: expected {format.nbytes(elements)} payload bytes for {elements} {format.name}, got {got}"
        )
    if format.bits < 8 and spare_bits(_tensor_bytes(tensor), format.bits, elements):
        raise CacheError(f"{place}: expected zeros in the unused bits of the last byte")


def _check_numbers(numbers: Array, format: Format, place: str) -> None:
    low, high = (format.low, format.high) if format.bits == 8 else (0, 65535 if format.bits == 16 else 255)
    wrong = numbers[(numbers < low) | (numbers > high)]
    if wrong.size:
        raise CacheError(
            f"{place}: expected {format.name} as numbers from {low} to {high} in int32_data, got {wrong[0]}"
        )


def _check_encoded(encoded: EncodedValueProto, place: str) -> tuple[Format, tuple[int, int, int, int]]:
    layout = encoded.WhichOneof("layout")
    if layout != "affine":
        raise CacheError(f"{place}: expected the layout affine, got {layout or 'none'}")
    _check_inline(encoded, place)
    logical = encoded.logical_type
    if logical.WhichOneof("value") != "tensor_type" or logical.tensor_type.elem_type != TensorProto.FLOAT:
        raise CacheError(f"{place}: expected the logical type FLOAT tensor, got {_logical_name(logical)}")
    dims = [d.dim_value if d.WhichOneof("value") == "dim_value" else -1 for d in logical.tensor_type.shape.dim]
    shape = _check_shape(dims, f"{place}, logical type")
    elements = int(np.prod(np.array(shape, object), dtype=object))
    format = _storage_format(encoded.affine, elements, len(encoded.raw_data), place)
    if len(encoded.raw_data) != format.nbytes(elements):
        got = len(encoded.raw_data)
        raise CacheError(
            f"{place}: expected {format.nbytes(elements)} payload bytes for {elements} {format.name}, got {got}"
        )
    if spare_bits(encoded.raw_data, format.bits, elements):
        raise CacheError(f"{place}: expected zeros in the unused bits of the last byte")
    _check_parameters(encoded.affine, format, shape, place)
    return format, shape


def _storage_format(affine: AffineLayoutProto, elements: int, nbytes: int, place: str) -> Format:
    signed = affine.signed_storage if affine.HasField("signed_storage") else None
    unknown = _unknown_storage_types(affine)
    if unknown:
        raise CacheError(f"{place}: expected storage type INT8, UINT8, INT4, UINT4, INT2 or UINT2, got {unknown[-1]}")
    if affine.HasField("storage_type"):
        format = find_format(affine.storage_type)
        if format is None or not format.is_affine:
            got = _type_name(affine.storage_type)
            raise CacheError(f"{place}: expected storage type INT8, UINT8, INT4, UINT4, INT2 or UINT2, got {got}")
        if signed is not None and signed != (format.low < 0):
            raise CacheError(f"{place}: expected signed_storage {format.low < 0} for {format.name}, got {signed}")
        return format
    if signed is None:
        raise CacheError(f"{place}: expected storage_type or signed_storage, got neither")
    fitting = [f for f in FORMATS.values() if f.is_affine and (f.low < 0) == signed and f.nbytes(elements) == nbytes]
    if len(fitting) != 1:
        raise CacheError(
            f"{place}: expected {nbytes} payload bytes to tell the storage type of {elements} elements, "
            f"{len(fitting)} types fit"
        )
    return fitting[0]


def _unknown_storage_types(affine: AffineLayoutProto) -> list[int]:
    """Numbers that onnx's enum does not have: protobuf keeps them among the unknown fields."""
    data = affine.SerializeToString()
    numbers = [
        wire.read_varint(data, f.payload, f.end)[0]
        for f in wire.read_fields(data)
        if (f.number, f.wire_type) == (_STORAGE_TYPE, wire.VARINT)
    ]
    return [n for n in numbers if n not in TensorProto.DataType.values()]


def _check_parameters(affine: AffineLayoutProto, format: Format, shape: tuple[int, int, int, int], place: str) -> None:
    axis = affine.axis if affine.HasField("axis") else None
    block_size = affine.block_size if affine.HasField("block_size") else None
    if axis is not None and not -4 <= axis < 4:
        raise CacheError(f"{place}: expected an axis from -4 to 3, got {axis}")
    if block_size is not None and (axis is None or block_size == 0):
        got = "0" if block_size == 0 else f"{block_size} without an axis"
        raise CacheError(f"{place}: expected a block_size of 1 or more with an axis, got {got}")
    expected: list[list[int]]
    if axis is None:
        expected = [[], [1]]
    elif block_size is None:
        expected = [[shape[axis]]]
    else:
        expected = [[d if i != axis % 4 else -(-d // block_size) for i, d in enumerate(shape)]]
    if not affine.HasField("scale"):
        raise CacheError(f"{place}: expected a scale, got none")
    _check_parameter(affine.scale, FORMATS["FLOAT"], expected, f"{place}, scale")
    scale = _tensor_array(affine.scale, FORMATS["FLOAT"])
    wrong = scale[~(np.isfinite(scale) & (scale > 0))]
    if wrong.size:
        raise CacheError(f"{place}, scale: expected positive finite values, got {wrong[0]}")
    if affine.HasField("zero_point"):
        _check_parameter(affine.zero_point, format, expected, f"{place}, zero_point")


def _check_parameter(tensor: TensorProto, format: Format, shapes: list[list[int]], place: str) -> None:
    if tensor.data_type != format.data_type:
        raise CacheError(f"{place}: expected the data type {format.name}, got {_type_name(tensor.data_type)}")
    if list(tensor.dims) not in shapes:
        raise CacheError(f"{place}: expected the shape {' or '.join(map(str, shapes))}, got {list(tensor.dims)}")
    _check_tensor_data(tensor, format, place)


def _tensor_bytes(tensor: TensorProto) -> bytes:
    """The payload of a tensor of less than 16 bits an element, wherever it is."""
    if tensor.int32_data:
        return (np.array(tensor.int32_data, np.int64) & 0xFF).astype(np.uint8).tobytes()
    return bytes(tensor.raw_data)


def _tensor_array(tensor: TensorProto, format: Format) -> Array:
    """The elements of a checked tensor: float32, float16, bfloat16, or codes as int32."""
    values: Array
    if format.is_affine:
        values = unpack_codes(_tensor_bytes(tensor), format, int(np.prod(tensor.dims, dtype=np.int64)))
    elif tensor.float_data:
        values = np.array(tensor.float_data, np.float32)
    elif tensor.int32_data:
        values = np.array(tensor.int32_data, np.uint16).view(format.dtype)
    else:
        values = (
            np.frombuffer(tensor.raw_data, f"<u{format.bits // 8}").astype(f"u{format.bits // 8}").view(format.dtype)
        )
    return values.reshape(tuple(tensor.dims))


def _type_name(data_type: int) -> str:
    try:
        return str(TensorProto.DataType.Name(data_type))
    except ValueError:
        return str(data_type)


def _logical_name(logical: Any) -> str:
    which = logical.WhichOneof("value")
    if which != "tensor_type":
        return which or "none"
    return f"{_type_name(logical.tensor_type.elem_type)} tensor"
