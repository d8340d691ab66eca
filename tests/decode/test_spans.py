"""Where pages lie in serialized bytes, in whatever form protobuf allows."""

from __future__ import annotations

import numpy as np
import pytest
from cache.strategies import scrambled_caches
from decode.pages import appended, tokens
from hypothesis import given, settings

from onnx_ai_rt import CacheError, PagedCacheProto
from onnx_ai_rt.decode.spans import find_spans
from onnx_ai_rt.reference import wire


@pytest.mark.parametrize("start", [0, 1, 127, 128, 20_000, 2**40])
@pytest.mark.parametrize("formats", [("FLOAT", "FLOAT"), ("INT8", "FLOAT16"), ("BFLOAT16", "UINT2"), ("INT4", "INT4")])
def test_pages_of_the_library(start: int, formats: tuple[str, str]) -> None:
    data = appended(start, *tokens(150), page_size=140, formats=formats).tobytes()
    first, second = find_spans(data, "here")
    assert (first.begin, second.end, first.end) == (0, len(data), second.begin)
    assert [(span.start, span.length) for span in (first, second)] == [(start, 140), (start + 140, 10)]


@settings(max_examples=50)
@given(scrambled_caches())
def test_pages_of_other_writers(built: tuple[PagedCacheProto, bytes]) -> None:
    cache, data = built
    if any((field.number, field.wire_type) != (1, wire.BYTES) for field in wire.read_fields(data)):
        with pytest.raises(CacheError, match="here: expected pages alone, got field"):
            find_spans(data, "here")
        return
    spans = find_spans(data, "here")
    assert [(span.start, span.length) for span in spans] == [(block.start, block.length) for block in cache.blocks]
    assert [span.begin for span in spans] == [0, *(span.end for span in spans)][: len(spans)]


def test_every_truncation_is_an_error() -> None:
    data = appended(3, *tokens(2), page_size=1).tobytes()
    (first, second) = find_spans(data, "here")
    for size in range(1, len(data)):
        if size in (first.end, second.end):
            continue
        with pytest.raises(CacheError):
            find_spans(data[:size], "here")


def test_a_length_given_again_counts() -> None:
    """protobuf takes the last one, so that a reader of the first alone would be wrong."""
    message = PagedCacheProto.FromString(appended(0, *tokens(5)).tobytes())
    content = message.blocks[0].SerializeToString() + b"\x10\x03"
    data = b"\x0a" + bytes([len(content) & 0x7F | 0x80, len(content) >> 7]) + content
    assert PagedCacheProto.FromString(data).blocks[0].length == 3
    assert find_spans(data, "here")[0].length == 3
    assert find_spans(np.zeros(0, np.uint8).tobytes(), "here") == []
