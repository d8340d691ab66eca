"""The headers of a cache's pages: everything but the payloads."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from onnx_ai_rt.reference import wire
from onnx_ai_rt.reference.paged_cache import Payload, parse, validate
from onnx_ai_rt.reference.quantize import FORMATS, Format

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


def read_headers(data: Bytes, place: str = "paged cache") -> list[PageHeader]:
    """Validates a serialized cache, without looking at the values of its raw payloads.

    Raises:
        CacheError: a ValueError that says in one sentence what is wrong, and where.
    """
    blocks = validate(parse(data, place), place)
    fields = [f for f in wire.read_fields(data.tobytes()) if (f.number, f.wire_type) == (1, wire.BYTES)]
    return [
        PageHeader(b.start, b.length, f.begin, f.end, _payload_header(b.key), _payload_header(b.value))
        for b, f in zip(blocks, fields, strict=True)
    ]


def _payload_header(payload: Payload) -> PayloadHeader:
    if not payload.format.is_affine:
        return PayloadHeader(payload.format.name, payload.shape, None, None, None, None)
    affine = payload.message.affine
    scale, zero_point = payload.parameters()
    scalar = not affine.HasField("axis")
    return PayloadHeader(
        payload.format.name,
        payload.shape,
        float(scale.reshape(())) if scalar else None,
        int(zero_point.reshape(())) if scalar else None,
        None if scalar else affine.axis % 4,
        affine.block_size if affine.HasField("block_size") else None,
    )
