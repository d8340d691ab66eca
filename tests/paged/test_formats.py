"""PagedAttention over pages of every format and every granularity of parameters, against the reference."""

import numpy as np
import pytest
from cache.strategies import ALL_FORMATS, scrambled_caches
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paged_calls import (
    NORMAL,
    TYPES,
    Heads,
    check_call,
    check_y,
    fine_payload,
    make_cache,
    make_call,
    put,
)

from onnx_ai_rt.proto import PagedCacheProto
from onnx_ai_rt.reference.paged_cache import parse, validate
from onnx_ai_rt.reference.quantize import FORMATS

AFFINE = [name for name, format in FORMATS.items() if format.is_affine]
SMALL = Heads(B=2, Hq=4, Hkv=2, D=24, Dv=16)


@pytest.mark.parametrize("value", ALL_FORMATS)
@pytest.mark.parametrize("key", ALL_FORMATS)
def test_every_pair_of_formats(key, value):
    rng = np.random.default_rng(1)
    past = make_cache(rng, SMALL, [7, 7, 3], [key], [value], spare=2)
    for s in (1, 4):
        check_call(make_call(rng, SMALL, past, s, block_size=3))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("key", ALL_FORMATS)
def test_every_format_on_every_target(target, key, dtype):
    """Few query rows and many take different paths; 70 tokens a page reach over the ends of tiles."""
    rng = np.random.default_rng(2)
    for heads in (SMALL, Heads(B=1, Hq=3, Hkv=3, D=64, Dv=40)):
        past = make_cache(rng, heads, [70, 1, 70], [key], [key, "FLOAT16"], spare=1)
        for s in (1, 5, 40):
            check_call(make_call(rng, heads, past, s, dtype))


@pytest.mark.parametrize("width", [1, 3, 5, 7, 17, 33])
@pytest.mark.parametrize("name", ["INT4", "UINT4", "INT2", "UINT2", "INT8", "FLOAT16"])
def test_odd_widths(target, name, width):
    """Rows of codes that begin inside a byte."""
    rng = np.random.default_rng(3)
    heads = Heads(B=2, Hq=6, Hkv=3, D=width, Dv=width + 2)
    past = make_cache(rng, heads, [5, 1, 2, 9], [name], [name], spare=1)
    for s in (1, 9):
        check_call(make_call(rng, heads, past, s, key=NORMAL[name], value=NORMAL["UINT4"], block_size=2))


@pytest.mark.parametrize("block_size", [None, 1, 3, 8, 1 << 40])
@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
@pytest.mark.parametrize("name", AFFINE)
def test_every_granularity(name, axis, block_size):
    rng = np.random.default_rng(4)
    heads = Heads(B=2, Hq=4, Hkv=2, D=16, Dv=11)
    cache = PagedCacheProto()
    for i, length in enumerate((4, 66, 3)):
        block = cache.blocks.add(start=(0, 4, 70)[i], length=length)
        for side, width in (("key", heads.D), ("value", heads.Dv)):
            shape = (heads.B, heads.Hkv, length + 1, width)
            put(block, side, fine_payload(rng, shape, name, axis, block_size))
    past = cache.SerializeToString()
    for s, dtype in ((1, np.float32), (20, np.float32), (2, np.float16)):
        check_call(make_call(rng, heads, past, s, dtype))


def test_granularity_on_every_target(target):
    rng = np.random.default_rng(5)
    heads = Heads(B=1, Hq=4, Hkv=2, D=40, Dv=24)
    cache = PagedCacheProto()
    for i, (name, axis, size) in enumerate((("INT8", 3, 16), ("UINT4", 2, None), ("INT2", 1, None), ("INT4", 3, 4))):
        block = cache.blocks.add(start=30 * i, length=30)
        put(block, "key", fine_payload(rng, (1, 2, 30, 40), name, axis, size))
        put(block, "value", fine_payload(rng, (1, 2, 30, 24), name, axis, size))
    past = cache.SerializeToString()
    for s in (1, 3, 33):
        check_call(make_call(rng, heads, past, s))


@given(scrambled_caches(), st.integers(1, 9), st.integers(1, 3), st.integers(0, 2**32 - 1))
@settings(max_examples=80)
def test_any_cache_of_any_writer(case, s, group, seed):
    """Typed fields, unknown fields, split messages, all parameters: any cache that protobuf reads."""
    data = case[1]
    blocks = validate(parse(data))
    rng = np.random.default_rng(seed)
    heads = Heads(Hq=2 * group, Hkv=2, D=5, Dv=3)
    if blocks:
        batch, kv_heads, _, width = blocks[0].key.shape
        heads = Heads(batch, kv_heads * group, kv_heads, width, blocks[0].value.shape[3])
    call = make_call(rng, heads, data, s)
    # Scores of about 1, whatever the cache holds: large ones would only test the rounding of large numbers.
    largest = max([1.0, *(_largest(b.key) for b in blocks)])
    call.q = np.float32(call.q / largest)
    call.k = np.float32(call.k * largest)
    got = call.run("appended")
    appended = check_y(call, got["Y"], max([1.0, *(_largest(b.value) for b in blocks)]))
    assert bytes(got["appended"]) == appended


def _largest(payload) -> float:
    """The largest number that the payload's codes, or its values, could stand for."""
    if not payload.format.is_affine:
        return float(np.nanmax(np.abs(payload.decode()), initial=0))
    scale, _ = payload.parameters()
    return float(np.max(scale, initial=0)) * (payload.format.high - payload.format.low)


def test_pages_without_values():
    """Heads of width 0 give averages of nothing, or nothing to average."""
    rng = np.random.default_rng(6)
    for heads in (Heads(D=0), Heads(Dv=0), Heads(B=0), Heads(D=0, Dv=0)):
        past = make_cache(rng, heads, [3, 2], ["INT4", "FLOAT"], ["FLOAT16", "INT8"])
        check_call(make_call(rng, heads, past, 3))


def test_query_of_nan_and_infinity():
    """They follow IEEE and stay in their row."""
    rng = np.random.default_rng(7)
    call = make_call(rng, SMALL, make_cache(rng, SMALL, [9], ["INT8"], ["INT8"]), 3)
    call.q[0, 1, 1, 3] = np.nan
    y = call.run()["Y"]
    assert np.isnan(y[0, 1, 1]).all()
    y[0, 1, 1] = 0
    call.q[0, 1, 1, 3] = 0
    expected = call.oracle()[0]
    expected[0, 1, 1] = 0
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=4e-6)
