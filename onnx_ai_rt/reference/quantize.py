"""Plain numpy encoding and decoding of the nine storage formats of a page: the oracle for the kernels.

FLOAT, FLOAT16 and BFLOAT16 are dense. INT8, UINT8, INT4, UINT4, INT2 and UINT2 are affine:
``value = (code - zero_point) * scale`` in float32, as in ONNX ``QuantizeLinear`` and ``DequantizeLinear``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import TensorProto

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Format:
    """How the elements of a payload are stored."""

    name: str
    data_type: int  # onnx.TensorProto.DataType
    bits: int  # of one element
    dtype: Any  # numpy's
    low: int = 0  # range of the codes
    high: int = 0

    @property
    def is_affine(self) -> bool:
        return self.bits <= 8

    def nbytes(self, elements: int) -> int:
        """Bytes of a payload: codes of less than a byte are packed over the whole of it."""
        return (elements * self.bits + 7) // 8


def _affine(name: str, bits: int, dtype: Any, *, signed: bool) -> Format:
    low = -(1 << (bits - 1)) if signed else 0
    return Format(name, getattr(TensorProto, name), bits, np.dtype(dtype), low, low + (1 << bits) - 1)


#: The nine formats by name.
FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("FLOAT", TensorProto.FLOAT, 32, np.dtype(np.float32)),
        Format("FLOAT16", TensorProto.FLOAT16, 16, np.dtype(np.float16)),
        Format("BFLOAT16", TensorProto.BFLOAT16, 16, np.dtype(ml_dtypes.bfloat16)),
        _affine("INT8", 8, np.int8, signed=True),
        _affine("UINT8", 8, np.uint8, signed=False),
        _affine("INT4", 4, ml_dtypes.int4, signed=True),
        _affine("UINT4", 4, ml_dtypes.uint4, signed=False),
        _affine("INT2", 2, ml_dtypes.int2, signed=True),
        _affine("UINT2", 2, ml_dtypes.uint2, signed=False),
    )
}
_BY_DATA_TYPE = {f.data_type: f for f in FORMATS.values()}
_BY_DTYPE = {f.dtype: f for f in FORMATS.values()}


def find_format(key: int | str | np.dtype[Any] | type) -> Format | None:
    """The format with this name, ``onnx.TensorProto.DataType`` or numpy dtype, or None."""
    if isinstance(key, str) and key in FORMATS:
        return FORMATS[key]
    if isinstance(key, int):
        return _BY_DATA_TYPE.get(key)
    try:
        return _BY_DTYPE.get(np.dtype(key))
    except TypeError:
        return None


def pack_codes(codes: Array, bits: int) -> bytes:
    """Packs integers of any shape, row-major, the first element of a byte in its lowest bits; spare high bits are 0."""
    flat = codes.reshape(-1).astype(np.int16).astype(np.uint8)  # two's complement
    per_byte = 8 // bits
    spare = -flat.size % per_byte
    if spare:
        flat = np.concatenate([flat, np.zeros(spare, np.uint8)])
    rows = (flat & np.uint8((1 << bits) - 1)).reshape(-1, per_byte)
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    packed: npt.NDArray[np.uint8] = np.bitwise_or.reduce(rows << shifts, axis=1)
    return packed.tobytes()


def unpack_codes(data: bytes | Array, format: Format, count: int) -> npt.NDArray[np.int32]:
    """The first `count` codes of packed bytes, as a flat int32 array."""
    packed = np.frombuffer(data, np.uint8)
    per_byte = 8 // format.bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(format.bits)
    codes = (packed[:, None] >> shifts & np.uint8((1 << format.bits) - 1)).reshape(-1)[:count].astype(np.int32)
    return np.where(codes > format.high, codes - (1 << format.bits), codes).astype(np.int32)


def spare_bits(data: bytes, bits: int, count: int) -> int:
    """The bits of the last byte that hold no code (they must be 0)."""
    used = count * bits % 8
    return data[-1] >> used if data and used else 0


def expand_parameters(values: Array, shape: tuple[int, ...], axis: int | None, block_size: int | None) -> Array:
    """Broadcasts scales or zero points to the shape of the payload.

    Args:
        values: one value; with `axis` one per index of it; with `block_size` too, of the rank of `shape`, with
            ``ceil(shape[axis] / block_size)`` values along `axis`.
        shape: of the payload.
        axis: may be negative.
        block_size: elements along `axis` that share a value.
    """
    if axis is None:
        return np.broadcast_to(values.reshape(()), shape)
    axis %= len(shape)
    if block_size is None:
        along_axis = [1] * len(shape)
        along_axis[axis] = shape[axis]
        return np.broadcast_to(values.reshape(along_axis), shape)
    blocks = np.arange(shape[axis], dtype=np.int64) // min(block_size, max(shape[axis], 1))
    return np.take(values, blocks, axis=axis)


def quantize(x: FloatArray, scale: Array | float, zero_point: Array | int, format: Format) -> npt.NDArray[np.int32]:
    """Codes of finite float32 values: the float32 quotient, rounded half to even, plus the zero point, saturated.

    Scale and zero point broadcast against `x`.
    """
    with np.errstate(over="ignore"):
        rounded = np.rint(np.asarray(x, np.float32) / np.asarray(scale, np.float32))
    # Beyond 2**24 every code saturates, with or without the zero point: so does infinity.
    clipped = np.clip(rounded, -(2.0**24), 2.0**24).astype(np.int32)
    return np.clip(clipped + np.asarray(zero_point, np.int32), format.low, format.high)


def dequantize(codes: Array, scale: Array | float, zero_point: Array | int) -> FloatArray:
    """``(code - zero_point) * scale`` in float32; infinite where that is too large."""
    difference = np.asarray(codes, np.int32) - np.asarray(zero_point, np.int32)
    with np.errstate(over="ignore"):
        return difference.astype(np.float32) * np.asarray(scale, np.float32)


def narrow(x: FloatArray, format: Format) -> Array:
    """Rounds to nearest even to a dense format; infinite where the value is too large for it."""
    with np.errstate(over="ignore"):
        return x.astype(format.dtype)


def scale_for(low: float, high: float, format: Format) -> tuple[float, int]:
    """A scale and zero point with which an affine format covers the values from `low` to `high`.

    Signed formats get the zero point 0 and a symmetric range, unsigned ones the tightest range that includes 0.

    Returns:
        scale (positive, representable in float32) and zero point.
    """
    info = np.finfo(np.float32)
    zero_point = 0
    if format.low < 0:
        span = max(abs(low), abs(high))
    else:
        low, high = min(low, 0.0), max(high, 0.0)
        span = high - low
    scale = float(np.clip(span / format.high, float(info.smallest_subnormal), float(info.max))) if span > 0 else 1.0
    if format.low == 0:
        zero_point = int(np.clip(np.rint(-low / scale), 0, format.high))
    # Every code is to decode to a finite value.
    widest = max(zero_point - format.low, format.high - zero_point)
    return float(min(np.float32(scale), np.nextafter(np.float32(info.max / widest), np.float32(0)))), zero_point
