"""Codes that meet queries as whole numbers, where the CPU has the instruction for it; elsewhere floats do the same."""

import numpy as np
import pytest
from support.paged_calls import TYPES, Heads, check_call, check_y, make_cache, make_call

from onnx_ai_rt import _core

CODES = ("INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2")


@pytest.fixture(params=_core.supported_cpu_targets())
def target(request):
    before = _core.chosen_cpu_target()
    _core.choose_cpu_target(request.param)
    yield request.param
    _core.choose_cpu_target(before)


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
