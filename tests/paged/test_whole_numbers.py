"""Codes that meet queries as whole numbers, where the CPU has the instruction for it; elsewhere floats do the same."""

import numpy as np
import pytest
from support.paged_calls import CODES, NORMAL, TYPES, Heads, check_call, check_y, make_cache, make_call, payload, put

from onnx_ai_rt.proto import PagedCacheProto
from onnx_ai_rt.reference import paged_attention


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", CODES)
def test_pages_and_rows(target, name, dtype):
    """Pages around half a vector of keys and around one and two, query rows around the blocks of four."""
    rng = np.random.default_rng(0)
    for width in (32, 48, 80, 128):
        for query_heads, s in ((1, 1), (2, 1), (3, 1), (4, 1), (1, 5), (4, 4), (5, 3)):
            heads = Heads(B=1, Hq=query_heads, Hkv=1, D=width, Dv=16)
            past = make_cache(rng, heads, [64, 7, 8, 9, 16, 17, 31, 33, 1, 64], [name], [name], spare=1)
            check_call(make_call(rng, heads, past, s, dtype))


class Ends:
    """Numbers beyond every code, of a sign that changes with the token."""

    def standard_normal(self, shape):
        return np.broadcast_to(np.where(np.arange(shape[2]) % 2, -1e4, 1e4)[:, None], shape)


@pytest.mark.parametrize("name", CODES)
def test_the_largest_sums(target, name):
    """Every code at an end and every query at its largest: sums do not leave their 32 bits."""
    heads = Heads(B=1, Hq=8, Hkv=1, D=16384, Dv=1)
    past = make_cache(Ends(), heads, [9], [name], [name])
    call = make_call(np.random.default_rng(1), heads, past, 1, scale=1e-4)
    for sign in (1.0, -1.0):
        call.q[:] = sign * np.float32(0.9999)
        check_y(call, call.run()["Y"])


@pytest.mark.parametrize("name", ["INT8", "UINT4"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_queries_at_the_edge(target, name, dtype):
    rng = np.random.default_rng(2)
    heads = Heads(B=1, Hq=6, Hkv=1, D=64, Dv=16)
    past = make_cache(rng, heads, [64, 40], [name], [name])
    for change in ("zero", "tiny", "outlier", "one"):
        call = make_call(rng, heads, past, 1, dtype)
        if change == "zero":
            call.q[0, 2] = 0
        elif change == "tiny":
            call.q[0, 1] *= np.array(1e-4, dtype)
            call.q[0, 3] = np.array(2e-38 if dtype != np.float16 else 6e-8).astype(dtype)
        elif change == "outlier":
            call.q[0, 4, 0, 5] = 60
        else:
            call.q[0, 5] = 0
            call.q[0, 5, 0, 63] = -3
        check_y(call, call.run()["Y"])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("outlier", [30, 1e3, 6e4])
def test_an_outlier_that_meets_no_key(target, outlier, dtype):
    """Its size must not cost the other columns their precision."""
    rng = np.random.default_rng(4)
    heads = Heads(B=1, Hq=8, Hkv=1, D=64, Dv=16)
    cache = PagedCacheProto.FromString(make_cache(rng, heads, [64], ["INT8"], ["FLOAT"]))
    encoded = cache.blocks[0].encoded_key
    codes = np.frombuffer(encoded.raw_data, np.int8).reshape(64, 64).copy()
    codes[:, 9] = np.frombuffer(encoded.affine.zero_point.raw_data, np.int8)[0]
    encoded.raw_data = codes.tobytes()
    call = make_call(rng, heads, cache.SerializeToString(), 1, dtype)
    call.k[..., 9] = 0
    call.q[..., 9] = outlier
    check_y(call, call.run()["Y"])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("small", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("share", [8, 4, 3])
def test_large_columns_that_meet_no_key(target, share, small, dtype):
    """One column of `share` is large."""
    rng = np.random.default_rng(6)
    heads = Heads(B=1, Hq=4, Hkv=1, D=128, Dv=16)
    columns = np.arange(128) % share == 0
    keys = np.where(columns, 0, rng.standard_normal((1, 1, 64, 128)))
    cache = PagedCacheProto()
    block = cache.blocks.add(start=0, length=64)
    put(block, "key", payload(keys, 64, ("INT8", 0.03, 0)))
    put(block, "value", payload(rng.standard_normal((1, 1, 64, 16)), 64, NORMAL["FLOAT"]))
    call = make_call(rng, heads, cache.SerializeToString(), 1, dtype, scale=0.3 / small)
    call.q = np.where(columns, 0.7, np.float64(call.q) * small).astype(dtype)
    call.k[..., columns] = 0
    check_y(call, call.run()["Y"])


@pytest.mark.parametrize("dtype", TYPES[1:], ids=str)
def test_scores_around_a_hundred(target, dtype):
    """What is lost of a query counts as often as its scores are large: no more than the output's rounding loses."""
    rng = np.random.default_rng(7)
    heads = Heads(B=1, Hq=16, Hkv=1, D=128, Dv=128)
    call = make_call(rng, heads, make_cache(rng, heads, [64] * 8, ["INT8"], ["INT8"]), 1, dtype)
    call.q *= np.array(30, dtype)
    exact, _, _ = paged_attention(call.q, call.k, call.v, call.past, rounded=False)
    lost = np.float64(call.run()["Y"]) - exact
    rounding = np.float64(exact.astype(dtype)) - exact
    assert np.sqrt((lost**2).mean()) <= 1.05 * np.sqrt((rounding**2).mean())


@pytest.mark.parametrize(("size", "key_scale", "scale"), [(1e36, 1e10, 1.0), (1e-29, 3e-8, 1e35), (1e-27, 3e-8, 1e33)])
@pytest.mark.parametrize("name", ["INT8", "INT4"])
def test_factors_beyond_the_normal_range(target, name, size, key_scale, scale):
    rng = np.random.default_rng(5)
    heads = Heads(B=1, Hq=8, Hkv=1, D=64, Dv=16)
    codes = rng.integers(-8, 8, (1, 1, 32, 64)) if scale != 1.0 else np.zeros((1, 1, 32, 64))
    cache = PagedCacheProto()
    block = cache.blocks.add(start=0, length=32)
    put(block, "key", payload(codes * key_scale, 32, (name, key_scale, 0)))
    put(block, "value", payload(rng.standard_normal((1, 1, 32, 16)), 32, NORMAL["FLOAT"]))
    call = make_call(rng, heads, cache.SerializeToString(), 1, scale=scale)
    call.k[:] = 0
    call.q *= np.float32(size)
    check_y(call, call.run()["Y"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_queries_that_are_not_finite(target, value):
    """NaN in their own rows, and nothing in the others."""
    rng = np.random.default_rng(3)
    heads = Heads(B=1, Hq=6, Hkv=1, D=64, Dv=16)
    call = make_call(rng, heads, make_cache(rng, heads, [64, 40], ["INT4"], ["INT4"]))
    clean = call.run()["Y"]
    call.q[0, 2, 0, 7] = value
    got = call.run()["Y"]
    assert np.isnan(got[0, 2]).all()
    others = [0, 1, 3, 4, 5]
    np.testing.assert_allclose(got[0, others], clean[0, others], rtol=2e-5, atol=4e-6)
