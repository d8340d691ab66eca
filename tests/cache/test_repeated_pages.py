"""Pages that are written like the one before are recognized by their bytes: nothing must slip through."""

import numpy as np
import pytest
from cache import wire_writer as w
from cache.compare import assert_same_reading, read_core
from cache.strategies import ALL_FORMATS
from support.paged_calls import Heads, fine_payload, make_cache, put

from onnx_ai_rt.proto import PagedCacheProto

HEADS = Heads(B=1, Hq=1, Hkv=2, D=3, Dv=1)


def mutations(data: bytes, begin: int):
    """The bytes with each bit from `begin` on flipped, each byte left out, and each byte doubled."""
    for i in range(begin, len(data)):
        for bit in range(8):
            yield data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :]
        yield data[:i] + data[i + 1 :]
        yield data[:i] + data[i : i + 1] + data[i:]


@pytest.mark.parametrize(("key", "value"), [("FLOAT16", "INT4"), ("UINT2", "FLOAT"), ("INT8", "BFLOAT16")])
def test_every_small_change_of_a_repeated_page(key, value):
    data = make_cache(np.random.default_rng(0), HEADS, [1, 1, 1], [key], [value])
    assert assert_same_reading(data)
    begin = read_core(data)[1]["begin"]
    accepted = sum(assert_same_reading(changed) for changed in mutations(data, begin))
    assert accepted > 10  # other values


@pytest.mark.parametrize("name", ALL_FORMATS)
def test_payloads_and_offsets(name):
    """Starts of one to three bytes, so that the pages' sizes change."""
    data = make_cache(np.random.default_rng(1), HEADS, [90] * 190, [name], [name], spare=1)
    assert assert_same_reading(data)
    for block in read_core(data):
        page = PagedCacheProto.FromString(data[block["begin"] : block["end"]]).blocks[0]
        assert page.start == block["start"]
        for side in ("key", "value"):
            payload = getattr(page, page.WhichOneof(f"{side}_payload"))
            assert data[block[side]["offset"] :][: block[side]["nbytes"]] == payload.raw_data


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_parameters_along_an_axis(axis):
    """Pages with the same parameters and with others."""
    cache = PagedCacheProto()
    for i, seed in enumerate((0, 0, 1, 1, 1)):
        block = cache.blocks.add(start=4 * i, length=4)
        for side in ("key", "value"):
            put(block, side, fine_payload(np.random.default_rng(seed), (1, 2, 4, 3), "UINT4", axis, None))
    data = cache.SerializeToString()
    assert assert_same_reading(data)
    scales = [block["key"]["scale"] for block in read_core(data)]
    assert scales[0] == scales[1] != scales[2] == scales[3] == scales[4]


def block(*fields: bytes) -> bytes:
    return w.data(1, b"".join(fields))


def test_pages_of_other_writers():
    """Fields in other places, given twice, or in odd encodings."""
    payload = w.tensor(w.FLOAT16, (1, 1, 1, 1), b"\x00\x3c")
    sides = w.data(3, payload), w.data(5, payload)
    length = w.number(2, 1)
    for pages in (
        [block(w.number(1, i), length, *sides) for i in range(3)],
        [block(length, w.number(1, i), *sides) for i in range(3)],
        [block(*sides, length, w.number(1, i)) for i in range(3)],
        [block(w.number(1, i), length, *reversed(sides)) for i in range(3)],
        [block(w.number(1, 9), w.number(1, i), length, *sides) for i in range(3)],
        [block(w.number(1, i), length, *sides, w.number(1, i)) for i in range(3)],
        [block(w.number(1, i), length, *sides, w.number(1, 0)) for i in range(3)],  # the last one counts
        [block(w.tag(1, 0, 2) + w.varint(i, 5), length, *sides) for i in range(3)],
        [block(w.number(1, i), length, *sides, w.number(50, i)) for i in range(3)],
        [block(w.number(1, i), length, w.data(3, w.number(2, 1)), *sides) for i in range(3)],
        [block(w.number(1, 0), length, *sides)] * 3,
        [block(w.number(1, i), length, sides[0], w.data(5, b"")) for i in range(3)],
        [block(length, *sides), block(w.number(1, 1), length, *sides), block(w.number(1, 2), length, *sides)],
    ):
        assert_same_reading(b"".join(pages))
