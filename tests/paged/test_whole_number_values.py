"""Codes that meet weights as whole numbers, where the CPU has the instruction for it; elsewhere floats do the same."""

import numpy as np
import pytest
from support.paged_calls import CODES, NORMAL, TYPES, Heads, check_call, check_y, make_cache, make_call, payload, put

from onnx_ai_rt.proto import PagedCacheProto
from onnx_ai_rt.reference.quantize import FORMATS

# Pages that fill words of four weights, and pages that do not; tiles of one page and of several.
LENGTHS = [64, 8, 12, 9, 16, 4, 15, 64, 33, 1, 30, 64]


def cache_of(pages):
    """pages: (keys, values, target of the values) with rows of one head."""
    cache = PagedCacheProto()
    start = 0
    for keys, values, target in pages:
        length = keys.shape[2]
        block = cache.blocks.add(start=start, length=length)
        start += length
        put(block, "key", payload(keys, length, NORMAL["FLOAT"]))
        put(block, "value", payload(values, length, target))
    return cache.SerializeToString()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", CODES)
def test_pages_and_rows(target, name, dtype):
    """Rows of codes of 64 bytes and of more or less; query rows around blocks of two."""
    rng = np.random.default_rng(0)
    for width in (64, 128, 192, 256):
        for query_heads, s in ((1, 1), (2, 1), (3, 1), (4, 1), (1, 5), (4, 4), (5, 3)):
            heads = Heads(B=1, Hq=query_heads, Hkv=1, D=16, Dv=width)
            past = make_cache(rng, heads, LENGTHS, ["FLOAT"], [name], spare=1)
            check_call(make_call(rng, heads, past, s, dtype))


@pytest.mark.parametrize("window", [0, 1, 2, 12, 13, 17, 40, 66, 131])
@pytest.mark.parametrize("name", CODES)
def test_keys_out_of_the_window(target, name, window):
    """Hidden keys in the words of seen ones; each of the new tokens sees others, and some see none of a page."""
    rng = np.random.default_rng(1)
    heads = Heads(B=1, Hq=2, Hkv=1, D=16, Dv=256)
    for key in ("FLOAT", name):
        past = make_cache(rng, heads, [64, 64, 12, 64], [key], [name, "FLOAT", name])
        for s in (1, 3):
            make_call(rng, heads, past, s).run()  # leaves weights where the next call computes
            check_call(make_call(rng, heads, past, s, left_window_size=window))


@pytest.mark.parametrize("name", CODES)
def test_formats_that_change_within_a_tile(target, name):
    rng = np.random.default_rng(2)
    heads = Heads(B=1, Hq=4, Hkv=1, D=16, Dv=256)
    past = make_cache(rng, heads, [16, 16, 13, 19, 20, 12, 40, 24], [name], [name, "FLOAT", "INT8", "INT4"])
    check_call(make_call(rng, heads, past))


@pytest.mark.parametrize("name", CODES)
def test_the_largest_sums(target, name):
    """Every code as far from its zero point as can be, and all weights 1: sums do not leave their 32 bits."""
    heads = Heads(B=1, Hq=2, Hkv=1, D=16, Dv=256)
    format = FORMATS[name]
    rng = np.random.default_rng(3)
    for zero, code in ((format.low, format.high), (format.high, format.low)):
        values = np.full((1, 1, 64, 256), 0.5 * (code - zero))
        page = (np.zeros((1, 1, 64, 16)), values, (name, 0.5, zero))
        call = make_call(rng, heads, cache_of([page, page]))
        call.k[:] = 0
        check_y(call, call.run()["Y"], scale=256.0)


@pytest.mark.parametrize("reach", [0.0, -10.0, -30.0, -59.0, -61.0, -80.0])
@pytest.mark.parametrize("name", ["INT8", "UINT4"])
def test_weights_that_are_tiny_beside_others(target, name, reach):
    """What the others add is 0, so that all that is left comes from them."""
    rng = np.random.default_rng(4)
    heads = Heads(B=1, Hq=4, Hkv=1, D=16, Dv=128)
    _, scale, zero = NORMAL[name]
    keys = rng.standard_normal((1, 1, 64, 16)) * 0.1
    keys[..., 0] = 0
    low = keys.copy()
    low[..., 0] = reach
    pages = [
        (keys, np.zeros((1, 1, 64, 128)), (name, scale, zero)),
        (low, rng.standard_normal((1, 1, 64, 128)), (name, scale, zero)),
    ]
    call = make_call(rng, heads, cache_of(pages), scale=1.0)
    call.q[..., 0] = 1
    call.k[:] = 0
    call.v[:] = 0
    expected, _ = call.oracle()
    largest = np.abs(expected).max()
    assert 0 < largest < np.exp(reach + 2)
    # Scores around 80 are rounded to 4e-6, and so much of the weight.
    np.testing.assert_allclose(call.run()["Y"] / largest, expected / largest, rtol=5e-5, atol=2e-5)


@pytest.mark.parametrize("reach", [-1e-9, -2e-8, -6e-8, -2e-7, -0.69314712, -0.69314718, -0.69314724, -1.3862944])
def test_weights_just_below_a_power_of_two(target, reach):
    """The largest number that their digits hold is not passed."""
    heads = Heads(B=1, Hq=2, Hkv=1, D=16, Dv=64)
    pages = []
    for first, value in ((0.0, 0.0), (reach, 1.0)):
        keys = np.zeros((1, 1, 64, 16))
        keys[..., 0] = first
        pages.append((keys, np.full((1, 1, 64, 64), value), ("INT8", 1.0, 0)))
    call = make_call(np.random.default_rng(7), heads, cache_of(pages), scale=1.0)
    call.q[:] = 1
    call.k[:] = 0
    call.v[:] = 0
    check_y(call, call.run()["Y"])


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-4, 1e4, 1e30, 1e36])
@pytest.mark.parametrize("name", ["INT8", "INT4"])
def test_scales_of_values(target, name, scale):
    rng = np.random.default_rng(5)
    heads = Heads(B=1, Hq=3, Hkv=1, D=16, Dv=128)
    codes = rng.integers(-7, 8, (1, 1, 64, 128))
    page = (rng.standard_normal((1, 1, 64, 16)), codes * np.float64(np.float32(scale)), (name, scale, 0))
    call = make_call(rng, heads, cache_of([page]))
    call.v[:] = 0
    expected, _ = call.oracle()
    with np.errstate(over="ignore"):
        got = np.float64(call.run()["Y"]) / scale
    np.testing.assert_allclose(got, np.float64(expected) / scale, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("gap", [4, 8, 12, 16])
@pytest.mark.parametrize("count", [1, 4, 7])
@pytest.mark.parametrize("name", ["INT8", "INT4"])
def test_weights_above_all_others(target, name, count, gap):
    """The keys that take nearly all of the weight have values of 0, as a model's first tokens do: the others show."""
    rng = np.random.default_rng(6)
    heads = Heads(B=1, Hq=4, Hkv=1, D=16, Dv=128)
    keys = rng.standard_normal((1, 1, 64, 16)) * 0.1
    keys[..., 0] = -gap
    keys[0, 0, :count, 0] = 0
    values = rng.standard_normal((1, 1, 64, 128))
    values[0, 0, :count] = 0
    call = make_call(rng, heads, cache_of([(keys, values, (name, NORMAL[name][1], 0))]), scale=1.0)
    call.q[..., 0] = 1
    call.k[..., 0] = -1000
    expected, _ = call.oracle()
    largest = np.abs(expected).max()
    np.testing.assert_allclose(call.run()["Y"] / largest, expected / largest, rtol=2e-5, atol=4e-6)
