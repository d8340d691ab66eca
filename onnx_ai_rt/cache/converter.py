"""Pages in other formats."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from onnx_ai_rt._arguments import choice, described, integer, positive_float
from onnx_ai_rt._core import quantize_paged_cache
from onnx_ai_rt.cache.builder import page_scale
from onnx_ai_rt.cache.headers import Bytes, PageHeader, read_headers
from onnx_ai_rt.cache.pages import checked_block, decode_side
from onnx_ai_rt.cache.progress import progress
from onnx_ai_rt.reference import wire
from onnx_ai_rt.reference.paged_cache import CacheError
from onnx_ai_rt.reference.quantize import FORMATS, Format
from onnx_ai_rt.reference.quantize_paged_cache import encode_like, join_block, length_delimited

Target = tuple[str, float | None, int]  # format, scale (None: from the range of each page), zero point


def convert_pages(
    data: Bytes, headers: list[PageHeader], pages: Iterable[int] | None, key: Target, value: Target
) -> tuple[Bytes, list[PageHeader]]:
    """Bytes and headers of the cache with pages converted; see `PagedCache.quantize`."""
    try:
        key, value = _check_target("key", key), _check_target("value", value)
        selected = _check_pages(pages, len(headers))
    except ValueError as error:
        raise CacheError(f"PagedCache.quantize: {error}") from None
    except TypeError as error:
        raise TypeError(f"PagedCache.quantize: {error}") from None
    formats = {"key": FORMATS[key[0]], "value": FORMATS[value[0]]}
    if all(
        scale is not None or not formats[side].is_affine for side, (_, scale, _) in (("key", key), ("value", value))
    ):
        result = _convert_at_once(data, selected, formats, {"key": key, "value": value})
        return result, read_headers(result)
    pieces: list[Bytes] = []
    copied = 0
    for index in progress(selected, "converting pages"):
        header = headers[index]
        page = data[header.begin : header.end]
        block = checked_block(header, page)
        messages = []
        for side, payload, (_, scale, zero_point) in (("key", block.key, key), ("value", block.value, value)):
            rows = decode_side(header, side, page)
            parameters = page_scale(rows, formats[side]) if scale is None else (float(np.float32(scale)), zero_point)
            messages.append(encode_like(payload, rows, formats[side], *parameters))
        converted = length_delimited(1, join_block(_content(page), block, *messages))
        pieces += [data[copied : header.begin], np.frombuffer(converted, np.uint8)]
        copied = header.end
    result = np.concatenate([*pieces, data[copied:]])
    return result, read_headers(result)


def _convert_at_once(data: Bytes, pages: list[int], formats: dict[str, Format], targets: dict[str, Target]) -> Bytes:
    """All pages with the same parameters: what the operator does, by the same code."""
    arguments: dict[str, Any] = {}
    for side, (_, scale, zero_point) in targets.items():
        arguments[f"{side}_scale"] = 1.0 if scale is None else scale
        arguments[f"{side}_type"] = formats[side].data_type
        arguments[f"{side}_zero_point"] = zero_point if formats[side].is_affine else 0
    try:
        result: Bytes = quantize_paged_cache(data, np.array(pages, np.int64), **arguments, threads=os.cpu_count() or 1)
    except ValueError as error:
        raise CacheError(str(error)) from None
    return result


def _content(page: Bytes) -> bytes:
    """The message of a page without its tag and length."""
    data = page.tobytes()
    field = next(wire.read_fields(data))
    return data[field.payload : field.end]


def _check_target(side: str, target: Target) -> Target:
    name, scale, zero_point = target
    format = FORMATS[choice(name, f"{side}_format", FORMATS)]
    if scale is not None:
        scale = positive_float(scale, f"{side}_scale")
    zero_point = integer(zero_point, f"{side}_zero_point")
    if scale is not None and format.is_affine and not format.low <= zero_point <= format.high:
        raise ValueError(
            f"{side}_zero_point: expected a code of {name} from {format.low} to {format.high}, got {zero_point}"
        )
    return name, scale, zero_point


def _check_pages(pages: Iterable[int] | None, count: int) -> list[int]:
    if pages is None:
        return list(range(count))
    if not isinstance(pages, Iterable):
        raise TypeError(f"pages: expected the indices of pages, got {described(pages)}")
    selected = sorted(integer(page, "pages") for page in pages)
    for previous, page in zip([None, *selected], selected, strict=False):
        if not 0 <= page < count:
            expected = f"indices from 0 to {count - 1} ({count} pages)" if count else "none, since there are no pages"
            raise ValueError(f"pages: expected {expected}, got {page}")
        if page == previous:
            raise ValueError(f"pages: expected unique indices, got {page} twice")
    return selected
