"""Arrays of types that numpy lacks, into and out of a session."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from onnx_ai_rt._arguments import described
from onnx_ai_rt._runtime import onnxruntime, runtime_version

if TYPE_CHECKING:
    from onnxruntime import OrtValue


class _Extra(NamedTuple):
    """An element type that onnxruntime has and numpy has not."""

    onnx_type: int  # onnx.TensorProto.DataType
    bits: int
    signed: bool


_EXTRAS = {
    np.dtype(ml_dtypes.bfloat16): _Extra(16, 16, True),
    np.dtype(ml_dtypes.uint4): _Extra(21, 4, False),
    np.dtype(ml_dtypes.int4): _Extra(22, 4, True),
    np.dtype(ml_dtypes.uint2): _Extra(25, 2, False),
    np.dtype(ml_dtypes.int2): _Extra(26, 2, True),
}
_DTYPE_OF = {f"tensor({dtype.name})": dtype for dtype in _EXTRAS}


def to_ortvalue(array: npt.ArrayLike) -> OrtValue:
    """An array as an ``OrtValue``, for ``InferenceSession.run_with_ort_values`` (and as an input of ``run``).

    Args:
        array: any shape and layout; of a numpy type that onnxruntime knows, or of ``ml_dtypes.bfloat16``, ``int4``,
            ``uint4``, ``int2``, ``uint2`` (the 2-bit types need onnxruntime 1.24).

    Returns:
        A CPU tensor of the same shape and element type. Contiguous arrays of 8 bits and more are not copied: the value
        keeps the array alive, and later changes of the array show in it.

    Raises:
        TypeError: onnxruntime cannot carry the array's type; the text names it.
    """
    ort = onnxruntime()
    array = np.asarray(array)
    extra = _EXTRAS.get(array.dtype)
    if extra is not None and extra.bits == 2 and runtime_version() < (1, 24):
        raise TypeError(f"to_ortvalue: type {array.dtype.name} needs onnxruntime 1.24 or later, got {ort.__version__}")
    try:
        if extra is None:
            return ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))
        if extra.bits == 16:
            carrier = np.asarray(array, order="C").view(np.uint16)
        else:
            # onnxruntime takes the shape of the carrier and reads only its first, packed bytes.
            carrier = np.zeros(array.shape, np.uint8)
            packed = _pack(array, extra)
            carrier.reshape(-1)[: packed.size] = packed
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(carrier, extra.onnx_type)
    except (RuntimeError, ValueError) as error:
        raise TypeError(f"to_ortvalue: onnxruntime {ort.__version__} has no type for {array.dtype.name}") from error


def from_ortvalue(value: OrtValue) -> npt.NDArray[Any]:
    """The array that a tensor ``OrtValue`` holds, of the same shape; always a copy.

    Args:
        value: for example an output of ``InferenceSession.run_with_ort_values``. bfloat16 and the 4- and 2-bit types
            become arrays of the ``ml_dtypes`` type of that name; they must lie in CPU memory.

    Raises:
        TypeError: the value is no tensor, or of a type that neither numpy nor ``ml_dtypes`` has.
        ValueError: bfloat16 or a type below 8 bits, and not in CPU memory.
    """
    if not hasattr(value, "is_tensor"):
        raise TypeError(f"from_ortvalue: expected an OrtValue, got {described(value)}")
    if not value.is_tensor():
        raise TypeError(f"from_ortvalue: expected a tensor, got {value.data_type()}")
    kind = value.data_type()
    dtype = _DTYPE_OF.get(kind)
    if dtype is None:
        try:
            return np.array(value.numpy())
        except RuntimeError as error:
            raise TypeError(f"from_ortvalue: numpy has no type for {kind}: {error}") from error
    if value.device_name().lower() != "cpu":
        raise ValueError(f"from_ortvalue: {kind} must lie in CPU memory, got device {value.device_name()}")
    extra = _EXTRAS[dtype]
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    size = (count * extra.bits + 7) // 8
    stored = np.frombuffer(ctypes.string_at(value.data_ptr(), size) if size else b"", np.uint8)
    if extra.bits == 16:
        array: npt.NDArray[Any] = stored.copy().view(dtype).reshape(shape)
        return array
    return _unpack(stored, count, extra).astype(dtype).reshape(shape)


def _pack(array: npt.NDArray[Any], extra: _Extra) -> npt.NDArray[np.uint8]:
    """Codes of 4 or 2 bits, row-major, the first in the low bits of a byte."""
    per_byte = 8 // extra.bits
    codes = array.astype(np.int8).reshape(-1).view(np.uint8) & np.uint8(2**extra.bits - 1)
    padded = np.zeros(-(-codes.size // per_byte) * per_byte, np.uint8)
    padded[: codes.size] = codes
    shifts = np.arange(0, 8, extra.bits, dtype=np.uint8)
    packed: npt.NDArray[np.uint8] = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1)
    return packed


def _unpack(stored: npt.NDArray[np.uint8], count: int, extra: _Extra) -> npt.NDArray[np.int8]:
    """The first ``count`` numbers of what ``_pack`` makes."""
    shifts = np.arange(0, 8, extra.bits, dtype=np.uint8)
    codes = (stored[:, None] >> shifts).reshape(-1)[:count] & np.uint8(2**extra.bits - 1)
    numbers = codes.astype(np.int8)
    if extra.signed:
        numbers -= (numbers >> (extra.bits - 1)) << extra.bits
    return numbers
