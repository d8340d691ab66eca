"""Where the pages of serialized bytes lie."""

from __future__ import annotations

from typing import NamedTuple

from onnx_ai_rt.proto import PagedCacheProto
from onnx_ai_rt.reference import wire
from onnx_ai_rt.reference.paged_cache import MAX_MESSAGE_BYTES, CacheError

_BLOCKS, _START, _LENGTH = 1, 1, 2  # fields of the cache, and of a block


class Span(NamedTuple):
    """A page: ``[begin, end)`` of the bytes, its field's tag and length included, and its tokens."""

    begin: int
    end: int
    start: int
    length: int

    def moved(self, by: int) -> Span:
        return Span(self.begin + by, self.end + by, self.start, self.length)


def find_spans(data: bytes, place: str) -> list[Span]:
    """The pages in a run of them; nothing else may be between them.

    Only headers are read: the operator that wrote the pages has checked the rest, and the one that reads them will.

    Raises:
        CacheError: for bytes that are no pages, or pages that are not consecutive.
    """
    spans: list[Span] = []
    try:
        for field in wire.read_fields(data):
            if (field.number, field.wire_type) != (_BLOCKS, wire.BYTES):
                raise CacheError(f"{place}: expected pages alone, got field {field.number}")
            numbers = {_START: 0, _LENGTH: 0}
            for inner in wire.read_fields(data, field.payload, field.end):
                if inner.wire_type == wire.VARINT and inner.number in numbers:
                    numbers[inner.number] = wire.read_varint(data, inner.payload, inner.end)[0]
            span = Span(field.begin, field.end, numbers[_START], numbers[_LENGTH])
            if span.length < 1 or (spans and span.start != spans[-1].start + spans[-1].length):
                raise CacheError(
                    f"{place}: expected consecutive pages, got one of {span.length} tokens at token {span.start}"
                )
            spans.append(span)
    except wire.WireError as error:
        raise CacheError(f"{place}: expected serialized pages, got other bytes ({error})") from error
    return spans


def parse_one(page: bytes, place: str) -> PagedCacheProto:
    """The message of a cache with one page, of which start may be anything.

    Raises:
        CacheError: for a page beyond what Python's protobuf parses.
    """
    if len(page) > MAX_MESSAGE_BYTES:
        raise CacheError(f"{place}: Python's protobuf parses at most {MAX_MESSAGE_BYTES} bytes, got {len(page)}")
    return PagedCacheProto.FromString(page)
