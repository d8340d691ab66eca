"""ai.rt::QuantizePagedCache in plain numpy: which bytes the operator gives, and which errors."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx.reference.op_run import OpRun

from onnx_ai_rt.proto import EncodedValueProto, PagedCacheBlockProto
from onnx_ai_rt.reference import wire
from onnx_ai_rt.reference.paged_cache import Block, CacheError, Payload, parse, validate
from onnx_ai_rt.reference.quantize import (
    FORMATS,
    Array,
    FloatArray,
    Format,
    find_format,
    narrow,
    pack_codes,
    quantize,
)

_OPERATOR = "ai.rt::QuantizePagedCache"
_BLOCKS = 1  # field of PagedCacheProto

Target = tuple[Format, float, int]  # format, scale, zero point
Encoded = TensorProto | EncodedValueProto


def encode(
    values: FloatArray, capacity: int, format: Format, scale: float = 1.0, zero_point: int = 0, place: str = "payload"
) -> Encoded:
    """The message that holds these rows as a writer makes it: raw data, and an explicit zero point.

    Args:
        values: finite, float32, ``[batch, kv_heads, length, width]``.
        capacity: rows of the payload; those behind `length` hold the encoding of 0.
        format: any of the nine; `scale` and `zero_point` count for the affine ones.
        place: the start of error messages.

    Raises:
        CacheError: for a value beyond the range of a dense format.
    """
    batch, heads, length, width = values.shape
    shape = (batch, heads, capacity, width)
    if format.is_affine:
        codes = np.full(shape, zero_point, np.int32)
        codes[:, :, :length] = quantize(values, scale, zero_point, format)
        message = EncodedValueProto(raw_data=pack_codes(codes, format.bits))
        message.logical_type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, shape))
        affine = message.affine
        affine.storage_type = format.data_type
        affine.scale.data_type = TensorProto.FLOAT
        affine.scale.raw_data = np.array(scale, "<f4").tobytes()
        affine.zero_point.data_type = format.data_type
        affine.zero_point.raw_data = pack_codes(np.array([zero_point]), format.bits)
        return message
    rows = np.zeros(shape, format.dtype)
    rows[:, :, :length] = narrow(values, format)
    infinite = np.isinf(rows)
    if infinite.any():
        where = [int(i) for i in np.argwhere(infinite)[0]]
        raise CacheError(
            f"{place}: expected values in the range of {format.name}, got {values[tuple(where)]} at {where}"
        )
    little_endian = rows.view(f"u{format.bits // 8}").astype(f"<u{format.bits // 8}")
    return TensorProto(dims=shape, data_type=format.data_type, raw_data=little_endian.tobytes())


def convert_block(data: bytes, block: Block, key: Target, value: Target) -> bytes:
    """Bytes of a page in other formats.

    Args:
        data: the serialized block.
        block: its checked header.
        key: format, scale and zero point of the new key.
        value: the same of the new value.

    Raises:
        CacheError: naming the place, for values that are or become infinite or NaN.
    """
    messages = [encode_like(p, p.decode(), *t) for p, t in ((block.key, key), (block.value, value))]
    return join_block(data, block, *messages)


def encode_like(payload: Payload, rows: FloatArray, format: Format, scale: float, zero_point: int) -> Encoded:
    """The message that holds these rows in place of `payload`, with its capacity, name and doc string."""
    encoded = encode(rows, payload.shape[2], format, scale, zero_point, payload.place)
    for text in ("name", "doc_string"):
        if payload.message.HasField(text):
            try:
                setattr(encoded, text, getattr(payload.message, text))
            except UnicodeDecodeError as error:
                raise CacheError(f"{payload.place}: expected UTF-8 in {text}, got other bytes") from error
    return encoded


def join_block(data: bytes, block: Block, key: Encoded, value: Encoded) -> bytes:
    """The block `data` with other payloads: start, length, both payloads, then the unknown fields as they were."""
    message = PagedCacheBlockProto(start=block.start, length=block.length)
    for side, encoded in (("key", key), ("value", value)):
        getattr(message, side if isinstance(encoded, TensorProto) else f"encoded_{side}").CopyFrom(encoded)
    unknown = b"".join(data[f.begin : f.end] for f in wire.read_fields(data) if not _is_known(f))
    return message.SerializeToString() + unknown


def _is_known(field: wire.Field) -> bool:
    return 1 <= field.number <= 6 and field.wire_type == (wire.VARINT if field.number <= 2 else wire.BYTES)


def quantize_paged_cache(
    cache: bytes | Array,
    block_indices: Array,
    key_scale: Array,
    key_zero_point: Array,
    value_scale: Array,
    value_zero_point: Array,
) -> bytes:
    """Converts the chosen pages of a serialized cache; every other byte stays.

    Args:
        cache: bytes or uint8 array.
        block_indices: rank-1 int64, unique, zero-based, in any order.
        key_scale: float32 scalar (rank 0 or shape [1]), positive and finite.
        key_zero_point: scalar whose dtype is the format of the converted keys: int8, uint8, or ``ml_dtypes`` int4,
            uint4, int2, uint2 quantize; float32, float16 and ``ml_dtypes.bfloat16`` restore dense storage.
        value_scale: the same for the values.
        value_zero_point: the same for the values.

    Raises:
        CacheError: for an argument or a cache that is not valid, and for values that no result can hold.
    """
    data = cache_bytes(_OPERATOR, "cache", cache)
    key = read_target(_OPERATOR, "key", key_scale, key_zero_point)
    value = read_target(_OPERATOR, "value", value_scale, value_zero_point)
    place = f"{_OPERATOR}: input cache"
    blocks = validate(parse(data, place), place)
    selected = set(_indices(block_indices, len(blocks)))
    pieces = []
    index = 0
    for field in wire.read_fields(data):
        if (field.number, field.wire_type) != (_BLOCKS, wire.BYTES):
            pieces.append(data[field.begin : field.end])
            continue
        if index in selected:
            converted = convert_block(data[field.payload : field.end], blocks[index], key, value)
            pieces.append(length_delimited(_BLOCKS, converted))
        else:
            pieces.append(data[field.begin : field.end])
        index += 1
    return b"".join(pieces)


def length_delimited(number: int, content: bytes) -> bytes:
    """A field with its tag and length; `number` is below 16."""
    size, header = len(content), bytearray([number << 3 | wire.BYTES])
    while size >= 0x80:
        header.append(size & 0x7F | 0x80)
        size >>= 7
    header.append(size)
    return bytes(header) + content


def cache_bytes(operator: str, name: str, cache: bytes | Array) -> bytes:
    """The bytes of an operator's input. Raises CacheError."""
    if isinstance(cache, bytes):
        return cache
    if cache.dtype != np.uint8 or cache.ndim != 1:
        raise CacheError(f"{operator}: input {name}: expected a rank-1 uint8 tensor, got {_describe(cache)}")
    return cache.tobytes()


def read_target(operator: str, side: str, scale: Array, zero_point: Array) -> Target:
    """The format that the inputs SIDE_scale and SIDE_zero_point of an operator name. Raises CacheError."""
    scale, zero_point = np.asarray(scale), np.asarray(zero_point)
    if scale.dtype != np.float32 or scale.shape not in ((), (1,)):
        raise CacheError(f"{operator}: input {side}_scale: expected a FLOAT scalar, got {_describe(scale)}")
    scale_value = float(scale.reshape(()))
    if not (np.isfinite(scale_value) and scale_value > 0):
        raise CacheError(f"{operator}: input {side}_scale: expected a positive finite value, got {scale_value:g}")
    format = find_format(zero_point.dtype)
    if format is None or zero_point.shape not in ((), (1,)):
        raise CacheError(
            f"{operator}: input {side}_zero_point: expected a scalar of type {', '.join(FORMATS)}, "
            f"got {_describe(zero_point)}"
        )
    return format, scale_value, int(zero_point.reshape(())) if format.is_affine else 0


def _indices(block_indices: Array, count: int) -> list[int]:
    block_indices = np.asarray(block_indices)
    place = f"{_OPERATOR}: input block_indices"
    if block_indices.dtype != np.int64 or block_indices.ndim != 1:
        raise CacheError(f"{place}: expected a rank-1 int64 tensor, got {_describe(block_indices)}")
    seen: set[int] = set()
    for index in block_indices.tolist():
        if not 0 <= index < count:
            raise CacheError(f"{place}: expected indices from 0 to {count - 1} ({count} blocks), got {index}")
        if index in seen:
            raise CacheError(f"{place}: expected unique indices, got {index} twice")
        seen.add(index)
    return sorted(seen)


def _describe(x: Array) -> str:
    return f"{x.dtype} of shape {list(x.shape)}"


class QuantizePagedCache(OpRun):
    """The operator for ``onnx.reference.ReferenceEvaluator``."""

    op_domain = "ai.rt"

    def _run(self, *inputs: Array, **_: Any) -> tuple[Array]:
        """See `quantize_paged_cache`; the cache as uint8 array in and out."""
        return (np.frombuffer(quantize_paged_cache(*inputs), np.uint8),)
