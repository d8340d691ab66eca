"""The headers of a cache's pages: everything but the payloads."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_ai_rt._core import parse_paged_cache
from onnx_ai_rt.reference.paged_cache import CacheError
from onnx_ai_rt.reference.quantize import FORMATS, Format, find_format

Bytes = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, slots=True)
class PayloadHeader:
    """One side of a page: how it is stored."""

    format_name: str
    shape: tuple[int, int, int, int]  # batch, kv_heads, capacity, width
    scale: float | None  # of an affine format with one scale for the whole payload
    zero_point: int | None  # likewise
    axis: int | None
    block_size: int | None
    offset: int | None  # of the values in the cache's bytes; None where they are in pieces or there are none

    @property
    def format(self) -> Format:
        return FORMATS[self.format_name]

    @property
    def nbytes(self) -> int:
        """Bytes of the values alone, without parameters and field headers."""
        batch, heads, capacity, width = self.shape
        return self.format.nbytes(batch * heads * capacity * width)

    @property
    def parameters(self) -> str:
        """Those of an affine format in words: "scale 0.25, zero 8", "per head", "by 32 columns"; else nothing."""
        if not self.format.is_affine:
            return ""
        if self.axis is None:
            return f"scale {self.scale:.4g}" + (f", zero {self.zero_point}" if self.zero_point else "")
        name = ("batch", "head", "token", "column")[self.axis]
        return f"per {name}" if self.block_size is None else f"by {self.block_size} {name}s"


@dataclasses.dataclass(frozen=True, slots=True)
class PageHeader:
    """A page: which tokens it holds, where its bytes are, how both sides are stored."""

    start: int
    length: int
    begin: int  # of the whole field in the cache's bytes, tag and length included
    end: int
    key: PayloadHeader
    value: PayloadHeader

    @property
    def capacity(self) -> int:
        return self.key.shape[2]

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


def read_headers(data: Bytes, place: str = "PagedCache", *, is_run: bool = False) -> list[PageHeader]:
    """Validates a serialized cache, without looking at the values of its raw payloads.

    Args:
        data: contiguous bytes of any size.
        place: the start of error messages.
        is_run: the bytes are some pages out of a cache, and begin at whatever token the first says.

    Raises:
        CacheError: a ValueError that says in one sentence what is wrong, and where: the operators' own check.
    """
    place = place.encode(errors="backslashreplace").decode()  # names of files need not be UTF-8
    try:
        pages = parse_paged_cache(data, place, "cache", is_run)
    except ValueError as error:
        raise CacheError(str(error)) from None
    return [
        PageHeader(
            p["start"], p["length"], p["begin"], p["end"], _payload_header(p["key"]), _payload_header(p["value"])
        )
        for p in pages
    ]


def _payload_header(payload: dict[str, Any]) -> PayloadHeader:
    format = find_format(payload["data_type"])
    assert format is not None  # validated
    axis = payload.get("axis")
    scale, zero_point = (payload.get("scale"), payload.get("zero_point")) if axis is None else (None, None)
    return PayloadHeader(
        format.name, payload["shape"], scale, zero_point, axis, payload.get("block_size"), payload["offset"]
    )
