"""Pages in other formats."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from onnx_ai_rt.cache.builder import page_scale
from onnx_ai_rt.cache.headers import Bytes, PageHeader, read_headers
from onnx_ai_rt.cache.pages import checked_block
from onnx_ai_rt.cache.progress import progress
from onnx_ai_rt.reference import wire
from onnx_ai_rt.reference.paged_cache import CacheError, Payload
from onnx_ai_rt.reference.quantize import FORMATS, Format
from onnx_ai_rt.reference.quantize_paged_cache import convert_block, length_delimited

Target = tuple[str, float | None, int]  # format, scale (None: from the range of each page), zero point


def convert_pages(
    data: Bytes, headers: list[PageHeader], pages: Iterable[int] | None, key: Target, value: Target
) -> tuple[Bytes, list[PageHeader]]:
    """Bytes and headers of the cache with pages converted; see `PagedCache.quantize`."""
    key_format, value_format = _check_target("key", key), _check_target("value", value)
    selected = _check_pages(pages, len(headers))
    pieces: list[Bytes] = []
    copied = 0
    for index in progress(selected, "converting pages"):
        header = headers[index]
        page = data[header.begin : header.end]
        block = checked_block(header, page)
        targets = (_target(block.key, key_format, key), _target(block.value, value_format, value))
        converted = length_delimited(1, convert_block(_content(page), block, *targets))
        pieces += [data[copied : header.begin], np.frombuffer(converted, np.uint8)]
        copied = header.end
    result = np.concatenate([*pieces, data[copied:]])
    return result, read_headers(result)


def _content(page: Bytes) -> bytes:
    """The message of a page without its tag and length."""
    data = page.tobytes()
    field = next(wire.read_fields(data))
    return data[field.payload : field.end]


def _check_target(side: str, target: Target) -> Format:
    name, scale, zero_point = target
    format = FORMATS.get(name)
    if format is None:
        raise CacheError(f"{side}_format: expected one of {', '.join(FORMATS)}, got {name}")
    if scale is not None and not (np.isfinite(np.float32(scale)) and np.float32(scale) > 0):
        raise CacheError(f"{side}_scale: expected a positive finite float, got {scale}")
    if scale is not None and format.is_affine and not format.low <= zero_point <= format.high:
        raise CacheError(
            f"{side}_zero_point: expected a code of {name} from {format.low} to {format.high}, got {zero_point}"
        )
    return format


def _check_pages(pages: Iterable[int] | None, count: int) -> list[int]:
    if pages is None:
        return list(range(count))
    selected = sorted(int(p) for p in pages)
    for previous, page in zip([None, *selected], selected, strict=False):
        if not 0 <= page < count:
            raise CacheError(f"pages: expected indices from 0 to {count - 1} ({count} pages), got {page}")
        if page == previous:
            raise CacheError(f"pages: expected unique indices, got {page} twice")
    return selected


def _target(payload: Payload, format: Format, target: Target) -> tuple[Format, float, int]:
    _, scale, zero_point = target
    if scale is None:
        return (format, *page_scale(payload.decode(), format)) if format.is_affine else (format, 1.0, 0)
    return format, float(np.float32(scale)), zero_point
