"""Of several pages one is broken: the message names that one, not the last that could be read."""

import re
from collections.abc import Callable

import numpy as np
import pytest
from cache import wire_writer as w
from decode.pages import appended, tokens

from onnx_ai_rt import CacheError, PagedCacheProto, PagedKVCache, _core
from onnx_ai_rt.decode.spans import find_spans

COUNT = 4

# From the content of a page to its damaged field.
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "field number 0": lambda content: w.data(1, content + b"\x00\x01"),
    "wire type that does not exist": lambda content: w.data(1, b"\x7e" + content),
    "group without end": lambda content: w.data(1, content + b"\x7b"),
    "cut field": lambda content: w.data(1, content + w.tag(3, w.BYTES) + w.varint(100)),
    "broken key": lambda content: w.data(1, content + w.data(3, b"\x00")),
    "broken value": lambda content: w.data(1, content + w.data(6, w.data(1, b"\x08"))),
    "length beyond the end": lambda content: w.tag(1, w.BYTES) + w.varint(10**6) + content,
    "length of 10 bytes": lambda content: w.tag(1, w.BYTES) + w.varint(len(content), 10) + content,
}


def contents(start: int, alike: bool) -> list[bytes]:
    """Pages of 2, 3, 4, ... tokens, or of 2 tokens with all fields alike but the start."""
    pages = []
    for i in range(COUNT):
        data = appended(start, *tokens(2 if alike else 2 + i))
        message = PagedCacheProto.FromString(data.tobytes())
        pages.append(message.blocks[0].SerializeToString())
        start += message.blocks[0].length
    return pages


def parsed(data: bytes) -> object:
    return _core.parse_paged_cache(data, "Op", "past")


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("broken", range(COUNT))
def test_damage_inside_a_page(broken: int, name: str, alike: bool) -> None:
    pages = contents(0, alike)
    fields = [DAMAGE[name](page) if i == broken else w.data(1, page) for i, page in enumerate(pages)]
    data = b"".join(fields)
    with pytest.raises(ValueError, match=f"^Op: input past, block {broken}: expected a serialized .*, got") as error:
        parsed(data)
    found = re.search(rf" at byte (\d+) of {len(data)}$", str(error.value))
    begin = sum(map(len, fields[:broken]))
    assert found
    assert begin <= int(found[1]) <= begin + len(fields[broken])


@pytest.mark.parametrize("alike", [True, False])
def test_every_end_in_a_page(alike: bool) -> None:
    fields = [w.data(1, page) for page in contents(0, alike)]
    for broken in range(COUNT):
        for size in range(1, len(fields[broken])):
            with pytest.raises(ValueError, match=f"^Op: input past, block {broken}: expected a serialized"):
                parsed(b"".join(fields[:broken]) + fields[broken][:size])


@pytest.mark.parametrize("garbage", [b"\x00", b"\xff", b"\x7c", b"\x12\x7f", b"\x08\xff"])
@pytest.mark.parametrize("at", range(COUNT + 1))
def test_damage_between_pages_is_no_pages(at: int, garbage: bytes) -> None:
    fields = [w.data(1, page) for page in contents(0, False)]
    if garbage[0] in (0x12, 0x08, 0xFF):  # a field of its own that the pages behind would complete
        fields = fields[:at]
    data = b"".join([*fields[:at], garbage, *fields[at:]])
    with pytest.raises(ValueError, match=rf"^Op: input past: expected a serialized .* of {len(data)}$"):
        parsed(data)


@pytest.mark.parametrize("start", [0, 300])
@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("broken", range(COUNT))
def test_new_pages_of_a_decode_loop(broken: int, name: str, start: int) -> None:
    """Also where they do not begin at token 0; offsets count in the bytes that were given."""
    cache = PagedKVCache(1)
    if start:
        cache.append([appended(0, *tokens(start))])
    pages = contents(start, False)
    fields = [DAMAGE[name](page) if i == broken else w.data(1, page) for i, page in enumerate(pages)]
    data = np.frombuffer(b"".join(fields), np.uint8)
    with pytest.raises(CacheError, match=rf"^PagedKVCache: appended_0.*, block {broken}: .*, got ") as error:
        cache.append([data])
    found = re.search(r"byte (\d+)", str(error.value))
    begin = sum(map(len, fields[:broken]))
    assert found
    assert begin <= int(found[1]) <= begin + len(fields[broken])
    assert cache.tokens == start


def test_a_gap_between_new_pages() -> None:
    fields = [w.data(1, page) for page in contents(7, False)]
    for missing in range(1, COUNT - 1):
        data = b"".join(fields[:missing] + fields[missing + 1 :])
        with pytest.raises(CacheError, match=f"^here, block {missing}: expected consecutive pages"):
            find_spans(data, "here")
