"""Where the pages of serialized bytes lie."""

from __future__ import annotations

import re
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

    Only where they begin and end, and their tokens: the rest of them is not looked at.

    Raises:
        CacheError: for bytes that are no pages, or pages that are not consecutive.
    """
    spans: list[Span] = []
    at = 0
    try:
        while at < len(data):
            span = _plain_span(data, at) or _any_span(data, at, place)
            if span.length < 1 or (spans and span.start != spans[-1].start + spans[-1].length):
                raise CacheError(
                    f"{place}, block {len(spans)}: expected consecutive pages, "
                    f"got one of {span.length} tokens at token {span.start}"
                )
            spans.append(span)
            at = span.end
    except wire.WireError as error:
        raise CacheError(
            f"{place}, block {len(spans)}: expected serialized pages, got other bytes ({error})"
        ) from error
    return spans


_NUMBER = rb"([\x80-\xff]{0,8}[\x00-\x7f])"
_HEADER = re.compile(rb"\x0a%b\x08%b\x10%b[\x1a\x22]%b" % ((_NUMBER,) * 4))  # block: start, length, key or encoded key
_VALUE = re.compile(rb"[\x2a\x32]%b" % _NUMBER)  # value or encoded value


def _plain_span(data: bytes, at: int) -> Span | None:
    """The page at an offset if it has its four fields in the order in which writers put them; this is quick."""
    header = _HEADER.match(data, at)
    if header is None:
        return None
    size, start, length, key = map(_number, header.groups())
    value = _VALUE.match(data, header.end() + key)
    end = header.start(2) - 1 + size
    if value is None or value.end() + _number(value[1]) != end or end > len(data):
        return None
    return Span(at, end, start, length)


def _number(digits: bytes) -> int:
    value = 0
    for byte in reversed(digits):
        value = value << 7 | byte & 0x7F
    return value


def _any_span(data: bytes, at: int, place: str) -> Span:
    """The page at an offset, whatever protobuf allows in it."""
    field = next(wire.read_fields(data, at))
    if (field.number, field.wire_type) != (_BLOCKS, wire.BYTES):
        raise CacheError(f"{place}: expected pages alone, got field {field.number}")
    numbers = {_START: 0, _LENGTH: 0}
    for inner in wire.read_fields(data, field.payload, field.end):
        if inner.wire_type == wire.VARINT and inner.number in numbers:
            numbers[inner.number] = wire.read_varint(data, inner.payload, inner.end)[0]
    return Span(field.begin, field.end, numbers[_START], numbers[_LENGTH])


def parse_one(page: bytes, place: str) -> PagedCacheProto:
    """The message of a cache with one page, of which start may be anything.

    Raises:
        CacheError: for a page beyond what Python's protobuf parses.
    """
    if len(page) > MAX_MESSAGE_BYTES:
        raise CacheError(f"{place}: Python's protobuf parses at most {MAX_MESSAGE_BYTES} bytes, got {len(page)}")
    return PagedCacheProto.FromString(page)
