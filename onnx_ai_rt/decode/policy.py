"""When old pages get another format, and how a page gets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_ai_rt._arguments import choice, integer
from onnx_ai_rt._core import quantize_paged_cache
from onnx_ai_rt.cache.builder import page_scale
from onnx_ai_rt.cache.headers import Bytes, read_headers
from onnx_ai_rt.cache.pages import decode_side
from onnx_ai_rt.decode.spans import Span, parse_one
from onnx_ai_rt.reference.paged_cache import CacheError
from onnx_ai_rt.reference.quantize import FORMATS


@dataclass(frozen=True)
class ReformatPolicy:
    """Pages of which the last token is more than `older_than` tokens back get other formats, `every` tokens at a time.

    Each page gets a scale of its own for its keys and for its values, from their range.
    """

    older_than: int
    key_format: str
    """One of FLOAT, FLOAT16, BFLOAT16, INT8, UINT8, INT4, UINT4, INT2, UINT2."""
    value_format: str
    every: int = 64
    """How many tokens to wait for before pages are converted: the newer pages move then, which costs their bytes."""

    def __post_init__(self) -> None:
        for name in ("key_format", "value_format"):
            choice(getattr(self, name), f"ReformatPolicy: {name}", FORMATS)
        integer(self.older_than, "ReformatPolicy: older_than", 0)
        integer(self.every, "ReformatPolicy: every", 1)


def reformat_page(page: Bytes, span: Span, key_format: str, value_format: str) -> Bytes:
    """The bytes of a page in other formats, as ``ai.rt::QuantizePagedCache`` makes them.

    Args:
        page: its bytes.
        span: of the page.
        key_format: of the result.
        value_format: of the result.

    Returns:
        the new bytes; `page` itself where it has these formats already.

    Raises:
        CacheError: for values that are or become infinite or NaN.
    """
    place = f"page at token {span.start}"
    alone = parse_one(page.tobytes(), place)
    alone.blocks[0].start = 0  # as a cache of its own, it is valid
    data = np.frombuffer(alone.SerializeToString(), np.uint8)
    header = read_headers(data, place)[0]
    formats = {"key": FORMATS[key_format], "value": FORMATS[value_format]}
    if (header.key.format_name, header.value.format_name) == (key_format, value_format):
        return page
    arguments: dict[str, Any] = {}
    for side, format in formats.items():
        scale, zero_point = page_scale(decode_side(header, side, data), format) if format.is_affine else (1.0, 0)
        arguments |= {
            f"{side}_scale": scale,
            f"{side}_type": format.data_type,
            f"{side}_zero_point": zero_point,
        }
    try:
        converted = quantize_paged_cache(data, np.zeros(1, np.int64), **arguments)
    except ValueError as error:
        # The operator counts blocks in the cache that this page alone was to it.
        raise CacheError(f"{place}, {str(error).rpartition('block 0, ')[2]}") from None
    result = parse_one(converted.tobytes(), place)
    result.blocks[0].start = span.start
    return np.frombuffer(result.SerializeToString(), np.uint8)
