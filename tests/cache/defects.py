"""What can be wrong with a cache, one defect at a time: changes to a valid cache, and what the message must name."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto

from onnx_ai_rt.proto import EncodedValueProto, PagedCacheProto


class Defect(NamedTuple):
    name: str
    change: Callable[[PagedCacheProto], object]
    words: tuple[str, ...]  # that any clear message about it has


def base() -> PagedCacheProto:
    """Three pages: FLOAT, INT4 scalar and UINT8 blocked, INT8 per axis and BFLOAT16; 2 batches, 2 heads, width 3."""
    cache = PagedCacheProto(name="base")
    shape = (2, 2, 4, 3)
    first = cache.blocks.add(start=0, length=4)
    for payload in (first.key, first.value):
        payload.CopyFrom(onnx.numpy_helper.from_array(np.arange(48, dtype=np.float32).reshape(shape)))
    second = cache.blocks.add(start=4, length=3)
    _affine(second.encoded_key, "INT4", shape, 24, (), ())
    _affine(second.encoded_value, "UINT8", shape, 48, (2, 2, 4, 2), (2, 2, 4, 2), axis=-1, block_size=2)
    third = cache.blocks.add(start=7, length=1)
    _affine(third.encoded_key, "INT8", (2, 2, 1, 3), 12, (2,), (2,), axis=1)
    third.value.CopyFrom(TensorProto(dims=(2, 2, 1, 3), data_type=TensorProto.BFLOAT16, raw_data=b"\0\x3f" * 12))
    return cache


def _affine(
    value: EncodedValueProto,
    name: str,
    shape: tuple[int, ...],
    nbytes: int,
    scale_shape: tuple[int, ...],
    zero_shape: tuple[int, ...],
    axis: int | None = None,
    block_size: int | None = None,
) -> None:
    value.raw_data = bytes(i % 256 for i in range(nbytes))
    value.logical_type.CopyFrom(onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, shape))
    layout = value.affine
    layout.storage_type = getattr(TensorProto, name)
    layout.scale.CopyFrom(onnx.numpy_helper.from_array(np.full(scale_shape, 0.5, np.float32)))
    layout.zero_point.dims[:] = zero_shape
    layout.zero_point.data_type = layout.storage_type
    layout.zero_point.raw_data = b"\1" * int(np.prod(zero_shape, dtype=np.int64))
    if axis is not None:
        layout.axis = axis
    if block_size is not None:
        layout.block_size = block_size


def _set(path: str, value: object) -> Callable[[PagedCacheProto], None]:
    """Sets a field that is written as "blocks.1.encoded_key.affine.axis"; a list replaces a repeated field."""

    def change(cache: PagedCacheProto) -> None:
        *parents, last = path.split(".")
        message: object = cache
        for part in parents:
            message = message[int(part)] if part.isdigit() else getattr(message, part)  # type: ignore[index]
        if isinstance(value, list):
            getattr(message, last)[:] = value
        else:
            setattr(message, last, value)

    return change


def _clear(path: str) -> Callable[[PagedCacheProto], None]:
    def change(cache: PagedCacheProto) -> None:
        *parents, last = path.split(".")
        message: object = cache
        for part in parents:
            message = message[int(part)] if part.isdigit() else getattr(message, part)  # type: ignore[index]
        message.ClearField(last)  # type: ignore[attr-defined]

    return change


def _both(*changes: Callable[[PagedCacheProto], object]) -> Callable[[PagedCacheProto], None]:
    def change(cache: PagedCacheProto) -> None:
        for c in changes:
            c(cache)

    return change


def _dim(cache: PagedCacheProto, block: int) -> onnx.TensorShapeProto:
    return cache.blocks[block].encoded_key.logical_type.tensor_type.shape


K0, V0 = "blocks.0.key.", "blocks.0.value."
K1, V1, K2 = "blocks.1.encoded_key.", "blocks.1.encoded_value.", "blocks.2.encoded_key."
NAN, INF = float("nan"), float("inf")

DEFECTS = [
    Defect("first start", _set("blocks.0.start", 1), ("block 0", "start", "0", "1")),
    Defect("gap", _set("blocks.1.start", 5), ("block 1", "start", "4", "5")),
    Defect("overlap", _set("blocks.2.start", 6), ("block 2", "start", "7", "6")),
    Defect("negative start", _set("blocks.0.start", -1), ("block 0", "start", "-1")),
    Defect("no length", _clear("blocks.0.length"), ("block 0", "length", "0")),
    Defect("negative length", _set("blocks.0.length", -4), ("block 0", "length", "-4")),
    Defect("length beyond capacity", _set("blocks.2.length", 2), ("block 2", "2", "1")),
    Defect("no key", _clear("blocks.1.encoded_key"), ("block 1", "key")),
    Defect("no value", _clear("blocks.0.value"), ("block 0", "value")),
    Defect("key is DOUBLE", _set(K0 + "data_type", TensorProto.DOUBLE), ("block 0", "key", "FLOAT")),
    Defect("key is INT8", _set(K0 + "data_type", TensorProto.INT8), ("block 0", "key")),
    Defect("no data type", _clear(K0 + "data_type"), ("block 0", "key")),
    Defect("unknown data type", _set(K0 + "data_type", 12345), ("block 0", "key", "12345")),
    Defect("three dims", _set(K0 + "dims", [4, 4, 3]), ("block 0", "key", "4")),
    Defect("five dims", _set(K0 + "dims", [1, 2, 2, 4, 3]), ("block 0", "key")),
    Defect("negative dim", _set(K0 + "dims", [-2, -2, 4, 3]), ("block 0", "key", "-2")),
    Defect("huge dims", _set(K0 + "dims", [1 << 62, 2, 4, 3]), ("block 0", "key")),
    Defect("short payload", _set(K0 + "raw_data", b"\0" * 191), ("block 0", "key", "192", "191")),
    Defect("long payload", _set(V0 + "raw_data", b"\0" * 193), ("block 0", "value", "192", "193")),
    Defect("raw and typed", _set(K0 + "float_data", [0.0]), ("block 0", "key", "raw_data", "float_data")),
    Defect(
        "typed field too short",
        _both(_clear(K0 + "raw_data"), _set(K0 + "float_data", [0.0] * 47)),
        ("block 0", "key", "48", "47", "float_data"),
    ),
    Defect("wrong typed field", _set(K0 + "int64_data", [1]), ("block 0", "key", "float_data")),
    Defect(
        "16-bit pattern too large",
        _both(_clear("blocks.2.value.raw_data"), _set("blocks.2.value.int32_data", [0] * 11 + [65536])),
        ("block 2", "value", "65535", "65536"),
    ),
    Defect(
        "16-bit pattern negative",
        _both(_clear("blocks.2.value.raw_data"), _set("blocks.2.value.int32_data", [0] * 11 + [-1])),
        ("block 2", "value", "65535", "-1"),
    ),
    Defect("external tensor", _set(K0 + "data_location", TensorProto.EXTERNAL), ("block 0", "key", "external")),
    Defect("external codes", _set(K1 + "data_location", TensorProto.EXTERNAL), ("block 1", "key", "external")),
    Defect("other batch", _set(K0 + "dims", [4, 1, 4, 3]), ("block 0", "batch", "4", "2")),
    Defect("other heads", _set(V0 + "dims", [2, 1, 8, 3]), ("block 0", "value", "1", "2")),
    Defect("other capacity", _set(V0 + "dims", [2, 2, 6, 2]), ("block 0", "value", "capacity", "6", "4")),
    Defect("width changes", _set(K0 + "dims", [2, 2, 4, 4]), ("key",)),
    Defect("no layout", _clear(K1 + "affine"), ("block 1", "key", "affine")),
    Defect(
        "struct layout",
        lambda cache: cache.blocks[1].encoded_key.struct_type.SetInParent(),
        ("block 1", "key", "affine", "struct_type"),
    ),
    Defect("no logical type", _clear(K1 + "logical_type"), ("block 1", "key", "logical")),
    Defect(
        "logical FLOAT16",
        _set(K1 + "logical_type.tensor_type.elem_type", TensorProto.FLOAT16),
        ("block 1", "key", "logical"),
    ),
    Defect(
        "logical sequence",
        lambda cache: cache.blocks[1].encoded_key.logical_type.sequence_type.SetInParent(),
        ("block 1", "key", "logical"),
    ),
    Defect("no logical shape", _clear(K1 + "logical_type.tensor_type.shape"), ("block 1", "key")),
    Defect(
        "symbolic dimension",
        lambda cache: setattr(_dim(cache, 1).dim[2], "dim_param", "n"),
        ("block 1", "key"),
    ),
    Defect("five logical dims", lambda cache: _dim(cache, 1).dim.add(dim_value=1), ("block 1", "key")),
    Defect("short codes", _set(K1 + "raw_data", b"\0" * 23), ("block 1", "key", "24", "23")),
    Defect("no codes", _clear(K1 + "raw_data"), ("block 1", "key", "24", "0")),
    Defect("storage FLOAT", _set(K1 + "affine.storage_type", TensorProto.FLOAT), ("block 1", "key", "INT4")),
    Defect("storage INT16", _set(K1 + "affine.storage_type", TensorProto.INT16), ("block 1", "key", "INT4")),
    Defect(
        "unknown storage type",
        lambda cache: cache.blocks[1].encoded_key.affine.MergeFromString(b"\x08\xb9\x60"),
        ("block 1", "key", "12345"),
    ),
    Defect("no storage type", _clear(K1 + "affine.storage_type"), ("block 1", "key", "storage_type")),
    Defect("sign contradicts", _set(K1 + "affine.signed_storage", False), ("block 1", "key", "signed_storage")),
    Defect("no scale", _clear(K1 + "affine.scale"), ("block 1", "key", "scale")),
    Defect("scale is DOUBLE", _set(K1 + "affine.scale.data_type", TensorProto.DOUBLE), ("block 1", "key", "scale")),
    Defect("scale of 5 bytes", _set(K1 + "affine.scale.raw_data", b"\0" * 5), ("block 1", "key", "scale", "5")),
    Defect("scale too long", _set(K1 + "affine.scale.dims", [2]), ("block 1", "key", "scale", "2")),
    Defect("scale of rank 2", _set(K1 + "affine.scale.dims", [1, 1]), ("block 1", "key", "scale")),
    Defect("scale of 3 on an axis of 2", _set(K2 + "affine.scale.dims", [3]), ("block 2", "key", "scale", "2", "3")),
    Defect("blocked scale", _set(V1 + "affine.scale.dims", [2, 2, 4, 3]), ("block 1", "value", "scale", "2,2,4,2")),
    Defect("axis too large", _set(K2 + "affine.axis", 4), ("block 2", "key", "axis", "4")),
    Defect("axis too small", _set(K2 + "affine.axis", -5), ("block 2", "key", "axis", "-5")),
    Defect("block_size 0", _set(V1 + "affine.block_size", 0), ("block 1", "value", "block_size", "0")),
    Defect("block_size without axis", _set(K1 + "affine.block_size", 2), ("block 1", "key", "block_size", "axis")),
    Defect(
        "zero point of another type",
        _set(K1 + "affine.zero_point.data_type", TensorProto.UINT4),
        ("block 1", "key", "zero_point", "INT4"),
    ),
    Defect("zero point too short", _set(K2 + "affine.zero_point.raw_data", b"\0"), ("block 2", "key", "zero_point")),
    Defect(
        "zero point shape",
        _set(K2 + "affine.zero_point.dims", [1]),
        ("block 2", "key", "zero_point"),
    ),
    Defect(
        "zero point with spare bits",
        _set(K1 + "affine.zero_point.raw_data", b"\x11"),
        ("block 1", "key", "zero_point"),
    ),
    Defect(
        "zero point out of range",
        _both(
            _clear(K2 + "affine.zero_point.raw_data"),
            _set(K2 + "affine.zero_point.int32_data", [0, 128]),
        ),
        ("block 2", "key", "zero_point", "127", "128"),
    ),
    *(
        Defect(
            f"scale {value}",
            _set(K1 + "affine.scale.raw_data", np.array(value, "<f4").tobytes()),
            ("block 1", "key", "scale", "positive"),
        )
        for value in (0.0, -0.0, -1.0, NAN, INF, -INF)
    ),
]


def _spare_bits(cache: PagedCacheProto) -> None:
    """One page with keys of three 4-bit codes, whose unused last nibble is not zero."""
    del cache.blocks[1:]
    cache.blocks[0].length = 1
    for payload in (cache.blocks[0].key, cache.blocks[0].value):
        payload.CopyFrom(onnx.numpy_helper.from_array(np.zeros((1, 1, 1, 3), np.float32)))
    _affine(cache.blocks[0].encoded_key, "INT4", (1, 1, 1, 3), 2, (), ())
    cache.blocks[0].encoded_key.raw_data = b"\x21\x13"


DEFECTS.append(Defect("spare bits", _spare_bits, ("block 0", "key", "zero")))


def broken(defect: Defect) -> PagedCacheProto:
    """The base cache with one defect."""
    cache = base()
    defect.change(cache)
    return cache


def missing_words(message: str, words: tuple[str, ...]) -> list[str]:
    """The words that a message should have and has not; spaces in shapes and the case of type names are free."""
    text = message.replace(", ", ",").lower()
    return [word for word in words if word.lower() not in text]
