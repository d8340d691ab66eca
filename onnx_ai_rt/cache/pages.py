"""Pages of a cache as a person meets them: formats, sizes, values and errors."""

from __future__ import annotations

import dataclasses

import numpy as np

from onnx_ai_rt._core import convert_payload
from onnx_ai_rt.cache.headers import Bytes, PageHeader, PayloadHeader
from onnx_ai_rt.proto import PagedCacheBlockProto, PagedCacheProto
from onnx_ai_rt.reference.paged_cache import MAX_MESSAGE_BYTES, Block, CacheError, check_block
from onnx_ai_rt.reference.quantize import FORMATS, FloatArray, pack_codes


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Sizes of a page or a cache.

    ``values`` counts the numbers in valid rows of keys and values together; ``nbytes`` all bytes, those of field
    headers, parameters and unused rows included; ``payload_bytes`` those of the payloads alone.
    """

    tokens: int
    values: int
    nbytes: int
    payload_bytes: int

    @property
    def bits_per_value(self) -> float:
        """All bits, by the numbers that they hold; 0 for an empty cache."""
        return 8 * self.nbytes / self.values if self.values else 0.0

    @property
    def float_ratio(self) -> float:
        """How many times smaller than the same numbers as float32; 0 for an empty cache."""
        return 4 * self.values / self.nbytes if self.values else 0.0


@dataclasses.dataclass(frozen=True)
class PageError:
    """How far a page is from the original numbers: the largest and the root-mean-square difference of each side."""

    page: int
    key_max: float
    key_rms: float
    value_max: float
    value_rms: float


class Page:
    """A page of a `PagedCache`: a view that stays valid when the cache grows."""

    def __init__(self, index: int, header: PageHeader, data: Bytes) -> None:
        self._header = header
        self._data = data  # of the page alone
        #: Position in the cache.
        self.index = index

    @property
    def start(self) -> int:
        """Index of the first token."""
        return self._header.start

    @property
    def length(self) -> int:
        """Tokens held."""
        return self._header.length

    @property
    def capacity(self) -> int:
        """Rows of the payloads; those from `length` on are unused."""
        return self._header.capacity

    @property
    def key(self) -> PayloadHeader:
        """How the keys are stored."""
        return self._header.key

    @property
    def value(self) -> PayloadHeader:
        """How the values are stored."""
        return self._header.value

    @property
    def nbytes(self) -> int:
        """Bytes in the cache, field headers included."""
        return self._header.nbytes

    @property
    def statistics(self) -> Statistics:
        """Tokens, bytes, bits per value, ratio to float."""
        return page_statistics(self._header)

    def to_dense(self) -> tuple[FloatArray, FloatArray]:
        """Keys ``[batch, kv_heads, length, key width]`` and values of the valid rows, as float32.

        Raises:
            CacheError: for NaN and infinity, stored or by decoding.
        """
        return decode_side(self._header, "key", self._data), decode_side(self._header, "value", self._data)

    def to_proto(self) -> PagedCacheBlockProto:
        """The message of the page. Raises CacheError for a page of 2 GiB and more."""
        return parse_page(self._header, self._data)

    def __repr__(self) -> str:
        sides = (f"{name}={p.format_name}" for name, p in (("key", self.key), ("value", self.value)))
        stop = self.start + self.length
        return f"Page({self.index}: tokens {self.start} to {stop - 1}, {', '.join(sides)}, {format_bytes(self.nbytes)})"


def page_statistics(header: PageHeader) -> Statistics:
    """Sizes of one page."""
    values = 0
    for side in (header.key, header.value):
        batch, heads, _, width = side.shape
        values += batch * heads * width * header.length
    return Statistics(header.length, values, header.nbytes, header.key.nbytes + header.value.nbytes)


def parse_page(header: PageHeader, data: Bytes) -> PagedCacheBlockProto:
    """The message of a page from its bytes in the cache."""
    if header.nbytes > MAX_MESSAGE_BYTES:
        raise CacheError(
            f"page at token {header.start}: Python's protobuf parses at most {MAX_MESSAGE_BYTES} bytes, "
            f"got {header.nbytes}"
        )
    return PagedCacheProto.FromString(data.tobytes()).blocks[0]


def checked_block(header: PageHeader, data: Bytes) -> Block:
    """The page as the reference sees it."""
    return check_block(parse_page(header, data), f"page at token {header.start}", header.start)


def decode_side(header: PageHeader, side: str, page: Bytes) -> FloatArray:
    """The valid rows of one side, as float32.

    Args:
        header: of the page.
        side: "key" or "value".
        page: its bytes, ``[begin, end)`` of the cache.
    """
    payload: PayloadHeader = getattr(header, side)
    if payload.offset is None or payload.axis is not None:  # parts, or parameters that the header does not have
        block = checked_block(header, page)
        return (block.key if side == "key" else block.value).decode()
    begin = payload.offset - header.begin
    batch, heads, _, width = payload.shape
    scale = np.array(1.0 if payload.scale is None else payload.scale, "<f4").tobytes()
    zero_point = (
        b"\0" if payload.zero_point is None else pack_codes(np.array([payload.zero_point]), payload.format.bits)
    )
    try:
        rows: Bytes = convert_payload(
            page[begin : begin + payload.nbytes],
            dtype=payload.format.data_type,
            shape=payload.shape,
            length=header.length,
            target_dtype=FORMATS["FLOAT"].data_type,
            capacity=header.length,
            scales=scale,
            zero_points=zero_point,
        )
    except ValueError as error:
        got = str(error).rpartition(": ")[2]  # "nan at batch 0, head 1, token 2, column 3"
        place = f"page at token {header.start}, {side}"
        raise CacheError(f"{place}: expected finite values in the valid rows, got {got}") from None
    values: FloatArray = rows.view(np.float32)
    return values.reshape(batch, heads, header.length, width)


def compare(page: int, ours: tuple[FloatArray, FloatArray], original: tuple[FloatArray, FloatArray]) -> PageError:
    """Differences of the two sides of a page, computed in double precision."""
    numbers = []
    for a, b in zip(ours, original, strict=True):
        difference = np.abs(a.astype(np.float64) - b)
        numbers += [
            float(difference.max(initial=0)),
            float(np.sqrt(np.mean(difference**2))) if difference.size else 0.0,
        ]
    return PageError(page, *numbers)


def format_bytes(count: int) -> str:
    """A size for people: "512 B", "1.5 KiB", "3.2 MiB"."""
    if count < 1024:
        return f"{count} B"
    exponent = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**exponent:.1f} {'KMGT'[exponent - 1]}iB"
