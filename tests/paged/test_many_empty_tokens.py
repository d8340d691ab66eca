"""Tokens without values take no memory, so that there may be more of them than anything can be done with."""

import time

import numpy as np
import pytest
from support.paged_calls import NORMAL, Heads, make_cache

from onnx_ai_rt import _core
from onnx_ai_rt.reference.quantize import FORMATS

MANY = 1 << 50
HALF = np.float16


def run(shape, past=b"", value_width=0, **attributes):
    q = k = np.zeros(shape, HALF)
    v = np.zeros((*shape[:3], value_width), HALF)
    _, scale, zero_point = NORMAL["INT4"]
    encoding = (scale, FORMATS["INT4"].data_type, zero_point)
    return _core.paged_attention(
        past, q, k, v, attributes=attributes, request=["present", "appended"], value_encoding=encoding
    )


@pytest.mark.parametrize("shape", [(1, 1, MANY, 0), (MANY, 1, 1, 0), (1, MANY, 2, 0), (0, 1, MANY, 4)], ids=str)
def test_few_blocks_are_made_at_once(shape):
    begin = time.perf_counter()
    got = run(shape, block_size=MANY)
    (page,) = _core.parse_paged_cache(got["appended"])
    assert page["length"] == shape[2]
    again = run((*shape[:2], 3, shape[3]), got["present"], block_size=MANY)
    buffer = again["present"].copy()
    end = _core.merge_pages(buffer, 0, buffer.size, 1 << 60)
    assert [page["length"] for page in _core.parse_paged_cache(buffer[:end])] == [shape[2] + 3]
    assert time.perf_counter() - begin < 5  # measured 0.01 s


@pytest.mark.parametrize("block_size", [1, 16, 1 << 29])
def test_too_many_blocks_are_refused(block_size):
    begin = time.perf_counter()
    with pytest.raises(ValueError, match="got") as error:
        run((1, 1, MANY, 0), block_size=block_size)
    assert str(error.value) == (
        "ai.rt::PagedAttention: input K: expected at most 1048576 new blocks of tokens without values, "
        f"got {MANY // block_size} for {MANY} tokens and block_size {block_size}"
    )
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize(
    ("shape", "value_width", "place"),
    [
        ((1, 1 << 20, 1 << 38, 0), 0, "input Q: expected dimensions"),
        ((0, 1, 1 << 40, 0), 1 << 20, "input V: expected dimensions"),
    ],
)
def test_shapes_that_no_page_has(shape, value_width, place):
    """A page that such a step appended could not be read."""
    with pytest.raises(ValueError, match=rf"^ai.rt::PagedAttention: {place} with a product of at most 2\^57, .*, got"):
        run(shape, value_width=value_width, block_size=MANY)


def test_an_output_that_is_too_large():
    """Few heads of K and V, many of Q."""
    q, k = np.zeros((1, 1 << 20, 1 << 30, 0), HALF), np.zeros((1, 1, 1 << 30, 0), HALF)
    v = np.zeros((1, 1, 1 << 30, 0), HALF)
    assert _core.paged_attention(b"", q, k, v, attributes={"block_size": 1 << 30})["Y"].shape == q.shape
    q = np.zeros((0, 1 << 20, 1 << 30, 0), HALF)
    k, v = np.zeros((0, 1, 1 << 30, 0), HALF), np.zeros((0, 1, 1 << 30, 1 << 20), HALF)
    with pytest.raises(ValueError, match=r"^ai.rt::PagedAttention: input V: expected dimensions of output Y with"):
        _core.paged_attention(b"", q, k, v, attributes={"block_size": 1 << 30})


def test_max_tokens():
    rng = np.random.default_rng(0)
    small = make_cache(rng, Heads(B=1, Hkv=1, D=0, Dv=0), [3])
    with pytest.raises(ValueError, match=r"input past: expected at most 5 tokens .*, got 3 and 1125899906842624"):
        run((1, 1, MANY, 0), small, block_size=MANY, max_tokens=5)
