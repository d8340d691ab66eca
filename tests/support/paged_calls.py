"""PagedAttention calls for tests: caches of any formats, and what the operator has to give for them.

Letters as in the operator: B, Hq, Hkv, S new tokens, D, Dv. A target is (format name, scale, zero point).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from onnx_ai_rt import _core
from onnx_ai_rt.proto import EncodedValueProto, PagedCacheBlockProto, PagedCacheProto
from onnx_ai_rt.reference import paged_attention
from onnx_ai_rt.reference.paged_cache import parse, validate
from onnx_ai_rt.reference.quantize import FORMATS, pack_codes
from onnx_ai_rt.reference.quantize_paged_cache import encode

Target = tuple[str, float, int]
Shape = tuple[int, int, int, int]

# Scales and zero points with which standard normal numbers fill the codes' range.
NORMAL: dict[str, Target] = {
    "FLOAT": ("FLOAT", 1.0, 0),
    "FLOAT16": ("FLOAT16", 1.0, 0),
    "BFLOAT16": ("BFLOAT16", 1.0, 0),
    "INT8": ("INT8", 0.03, 3),
    "UINT8": ("UINT8", 0.025, 120),
    "INT4": ("INT4", 0.4, -1),
    "UINT4": ("UINT4", 0.35, 7),
    "INT2": ("INT2", 1.1, 0),
    "UINT2": ("UINT2", 1.0, 2),
}
CODES = ("INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2")
TYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


@dataclass(frozen=True)
class Heads:
    """The sizes that all pages of a cache share, and the query heads."""

    B: int = 1
    Hq: int = 2
    Hkv: int = 1
    D: int = 16
    Dv: int = 16


def payload(values: np.ndarray, length: int, target: Target, unused: float = 0.0) -> TensorProto | EncodedValueProto:
    """A payload of these rows; those from `length` on hold `unused` in dense formats."""
    name, scale, zero_point = target
    message = encode(np.float32(values[:, :, :length]), values.shape[2], FORMATS[name], scale, zero_point)
    if not FORMATS[name].is_affine:
        rows = np.frombuffer(message.raw_data, FORMATS[name].dtype).reshape(values.shape).copy()
        rows[:, :, length:] = unused
        message.raw_data = rows.tobytes()
    return message


def fine_payload(
    rng: np.random.Generator, shape: Shape, name: str, axis: int, block_size: int | None
) -> EncodedValueProto:
    """Random codes with scales and zero points along an axis; blocked with `block_size`."""
    format = FORMATS[name]
    codes = rng.integers(format.low, format.high + 1, shape)
    message = EncodedValueProto(raw_data=pack_codes(codes, format.bits))
    message.logical_type.CopyFrom(onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, shape))
    parameters: tuple[int, ...] = (shape[axis],)
    if block_size is not None:
        parameters = tuple(-(-n // block_size) if i == axis % 4 else n for i, n in enumerate(shape))
    affine = message.affine
    affine.storage_type = format.data_type
    affine.axis = axis
    if block_size is not None:
        affine.block_size = block_size
    scales = np.float32(rng.uniform(0.5, 1.5, parameters) * 3 / (format.high - format.low))
    zero_points = rng.integers(format.low, format.high + 1, parameters)
    affine.scale.CopyFrom(TensorProto(dims=parameters, data_type=TensorProto.FLOAT, raw_data=scales.tobytes()))
    packed = pack_codes(zero_points, format.bits)
    affine.zero_point.CopyFrom(TensorProto(dims=parameters, data_type=format.data_type, raw_data=packed))
    return message


def put(block: PagedCacheBlockProto, side: str, message: TensorProto | EncodedValueProto) -> None:
    getattr(block, side if isinstance(message, TensorProto) else f"encoded_{side}").CopyFrom(message)


def make_cache(
    rng: np.random.Generator,
    heads: Heads,
    lengths: Iterable[int],
    key: Sequence[str] = ("FLOAT",),
    value: Sequence[str] = ("FLOAT",),
    *,
    spare: int = 0,
    unused: float = float("nan"),
) -> bytes:
    """Pages of these lengths with random normal rows, their formats in turn; `spare` unused rows a page."""
    cache = PagedCacheProto()
    start = 0
    for i, length in enumerate(lengths):
        block = cache.blocks.add(start=start, length=length)
        start += length
        for side, names, width in (("key", key, heads.D), ("value", value, heads.Dv)):
            rows = rng.standard_normal((heads.B, heads.Hkv, length + spare, width))
            put(block, side, payload(rows, length, NORMAL[names[i % len(names)]], unused))
    return cache.SerializeToString()


def decoded(data: bytes, heads: Heads) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of the whole cache as float32 (B,Hkv,L,width), by the reference."""
    blocks = validate(parse(data))
    keys = [b.key.decode() for b in blocks] or [np.zeros((heads.B, heads.Hkv, 0, heads.D), np.float32)]
    values = [b.value.decode() for b in blocks] or [np.zeros((heads.B, heads.Hkv, 0, heads.Dv), np.float32)]
    return np.concatenate(keys, axis=2), np.concatenate(values, axis=2)


@dataclass
class PagedCall:
    """One call of the operator."""

    heads: Heads
    past: bytes
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    attributes: dict[str, Any] = field(default_factory=dict)
    key: Target | None = None
    value: Target | None = None

    def run(self, *request: str, threads: int = 1) -> dict[str, np.ndarray]:
        """By the compiled module, without ONNX Runtime."""
        encodings = [t and (t[1], FORMATS[t[0]].data_type, t[2]) for t in (self.key, self.value)]
        return _core.paged_attention(
            self.past,
            self.q,
            self.k,
            self.v,
            attributes=self.attributes,
            key_encoding=encodings[0],
            value_encoding=encodings[1],
            request=list(request),
            threads=threads,
        )

    def oracle(self) -> tuple[np.ndarray, bytes]:
        """Y, rounded once from double, and the new blocks, by the reference."""
        parameters: list[np.ndarray | None] = []
        for target in (self.key, self.value):
            if target is None:
                parameters += [None, None]
                continue
            name, scale, zero_point = target
            parameters += [np.float32(scale), np.array(zero_point).astype(FORMATS[name].dtype)]
        y, _, appended = paged_attention(self.q, self.k, self.v, self.past, *parameters, **self.attributes)
        return y, appended


def make_call(
    rng: np.random.Generator,
    heads: Heads,
    past: bytes,
    S: int = 1,
    dtype: Any = np.float32,
    *,
    key: Target | None = None,
    value: Target | None = None,
    **attributes: Any,
) -> PagedCall:
    """Random normal Q, K and V for a cache."""
    q = rng.standard_normal((heads.B, heads.Hq, S, heads.D)).astype(dtype)
    k = rng.standard_normal((heads.B, heads.Hkv, S, heads.D)).astype(dtype)
    v = rng.standard_normal((heads.B, heads.Hkv, S, heads.Dv)).astype(dtype)
    return PagedCall(heads, past, q, k, v, attributes, key, value)


# Half types are rounded once at the end; the probabilities inside carry float's error.
_TOLERANCE = {"float32": (2e-5, 4e-6), "float16": (2e-3, 1e-3), "bfloat16": (1.6e-2, 8e-3)}


def check_y(call: PagedCall, y: np.ndarray, scale: float = 1.0) -> bytes:
    """`y` agrees with the reference as its type lets it, for values of about `scale`. Returns the new blocks."""
    expected, appended = call.oracle()
    assert y.dtype == expected.dtype
    assert y.shape == expected.shape
    rtol, atol = _TOLERANCE[expected.dtype.name]
    np.testing.assert_allclose(np.float64(y), np.float64(expected), rtol=rtol, atol=atol * scale)
    return appended


def check_outputs(call: PagedCall, got: dict[str, np.ndarray]) -> None:
    """Y, present and appended."""
    appended = check_y(call, got["Y"])
    assert bytes(got["appended"]) == appended
    assert bytes(got["present"]) == bytes(call.past) + appended


def check_call(call: PagedCall, threads: int = 1) -> None:
    """All outputs, and that the past stays as it is."""
    before = bytes(bytearray(call.past))
    check_outputs(call, call.run("present", "appended", threads=threads))
    assert call.past == before
