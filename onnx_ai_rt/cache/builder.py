"""New pages from arrays."""

from __future__ import annotations

import numpy as np

from onnx_ai_rt._arguments import choice, described, integer
from onnx_ai_rt.cache.headers import Bytes, PageHeader, PayloadHeader
from onnx_ai_rt.cache.progress import progress
from onnx_ai_rt.proto import PagedCacheBlockProto
from onnx_ai_rt.reference.quantize import FORMATS, Array, FloatArray, Format, find_format, scale_for
from onnx_ai_rt.reference.quantize_paged_cache import encode, length_delimited

_BLOCKS = 1  # field of PagedCacheProto
_PLACE = "PagedCache.append"


def append_pages(
    offset: int,
    last: PageHeader | None,
    key: Array,
    value: Array,
    page_size: int,
    key_format: str | None,
    value_format: str | None,
) -> tuple[Bytes, list[PageHeader]]:
    """Bytes and headers of the pages that hold these tokens.

    Args:
        offset: where the bytes will be in the cache.
        last: the page before them.

    The others are those of `PagedCache.append`.
    """
    page_size = integer(page_size, f"{_PLACE}: page_size", 1)
    for side, array in (("key", key), ("value", value)):
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{_PLACE}: {side}: expected a numpy array, got {described(array)}")
    formats = {"key": _format("key", key, key_format), "value": _format("value", value, value_format)}
    _check_shapes(key, value, last)
    start = last.start + last.length if last else 0
    pieces, headers = [], []
    for first in progress(range(0, key.shape[2], page_size), "building pages"):
        length = min(page_size, key.shape[2] - first)
        block = PagedCacheBlockProto(start=start, length=length)
        sides = []
        for side, array in (("key", key), ("value", value)):
            rows = array[:, :, first : first + length].astype(np.float32)
            if not np.isfinite(rows).all():
                raise ValueError(
                    f"{_PLACE}: {side}: expected finite values, "
                    f"got NaN or infinity in tokens {first} to {first + length - 1}"
                )
            scale, zero_point = page_scale(rows, formats[side])
            message = encode(
                rows, length, formats[side], scale, zero_point, f"{_PLACE}: {side}, tokens from {first} on"
            )
            getattr(block, f"encoded_{side}" if formats[side].is_affine else side).CopyFrom(message)
            sides.append(
                (rows.shape, formats[side], scale, zero_point, length_delimited(1, message.SerializeToString()))
            )
        piece = length_delimited(_BLOCKS, block.SerializeToString())
        end = offset + len(piece)
        key_end = end - len(sides[1][-1])  # in both messages the values come last
        payloads = [_header(*side[:4], side_end) for side, side_end in zip(sides, (key_end, end), strict=True)]
        headers.append(PageHeader(start, length, offset, end, *payloads))
        pieces.append(piece)
        offset = end
        start += length
    return np.frombuffer(b"".join(pieces), np.uint8), headers


def page_scale(rows: FloatArray, format: Format) -> tuple[float, int]:
    """Scale and zero point of a page from the range of its values."""
    if not format.is_affine:
        return 1.0, 0
    return scale_for(float(rows.min(initial=0)), float(rows.max(initial=0)), format)


def _header(shape: tuple[int, ...], format: Format, scale: float, zero_point: int, end: int) -> PayloadHeader:
    batch, heads, length, width = shape
    offset = end - format.nbytes(batch * heads * length * width)
    values = (scale, zero_point) if format.is_affine else (None, None)
    return PayloadHeader(format.name, (batch, heads, length, width), values[0], values[1], None, None, offset)


def _format(side: str, array: Array, name: str | None) -> Format:
    own = FORMATS["FLOAT"] if array.dtype == np.float64 else find_format(array.dtype)
    if own is None or own.is_affine:
        raise ValueError(f"{_PLACE}: {side}: expected float32, float16, bfloat16 or float64, got {array.dtype}")
    return own if name is None else FORMATS[choice(name, f"{_PLACE}: {side}_format", FORMATS)]


def _check_shapes(key: Array, value: Array, last: PageHeader | None) -> None:
    for side, array in (("key", key), ("value", value)):
        if array.ndim != 4:
            raise ValueError(
                f"{_PLACE}: {side}: expected the shape [batch, kv_heads, tokens, width], got {list(array.shape)}"
            )
        if last:
            batch, heads, _, width = (last.key if side == "key" else last.value).shape
            expected = [batch, heads, array.shape[2], width]
            if list(array.shape) != expected:
                raise ValueError(
                    f"{_PLACE}: {side}: expected the shape {expected} of the pages before, got {list(array.shape)}"
                )
    if key.shape[:3] != value.shape[:3]:
        raise ValueError(
            f"{_PLACE}: value: expected batch, heads and tokens {list(key.shape[:3])} of the key, "
            f"got {list(value.shape[:3])}"
        )
