"""PagedAttention over page sizes, lengths, heads, windows and types, against the reference and against Attention."""

import numpy as np
import pytest
from support.paged_calls import NORMAL, TYPES, Heads, check_call, decoded, make_cache, make_call

from onnx_ai_rt import _core

GQA = Heads(B=2, Hq=6, Hkv=2, D=16, Dv=24)
MIXED = ["FLOAT", "INT8", "BFLOAT16", "UINT4", "FLOAT16"]


def paged(page: int, length: int) -> list[int]:
    """Lengths of full pages and the rest."""
    return [page] * (length // page) + ([length % page] if length % page else [])


@pytest.mark.parametrize("page", [1, 2, 3, 5, 8, 16, 17, 31, 32, 63, 64])
def test_page_sizes_and_lengths_around_their_ends(page):
    rng = np.random.default_rng(page)
    heads = Heads(B=1, Hq=4, Hkv=2, D=8, Dv=12)
    lengths = {n for pages in (1, 2, 3) for n in (pages * page - 1, pages * page, pages * page + 1)}
    for length in sorted(lengths | {63, 64, 65, 128, 129}):
        past = make_cache(rng, heads, paged(page, length), MIXED, MIXED[::-1])
        for s in (1, 3):
            check_call(make_call(rng, heads, past, s, block_size=page))


@pytest.mark.parametrize("s", [*range(1, 10), 15, 16, 17, 33, 64, 65, 130])
def test_numbers_of_new_tokens(s):
    rng = np.random.default_rng(s)
    past = make_cache(rng, GQA, [16, 16, 5, 1, 1, 30], MIXED, MIXED)
    check_call(make_call(rng, GQA, past, s, block_size=16))
    check_call(make_call(rng, GQA, b"", s, block_size=7))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 7, 8, 16, 20])
def test_group_sizes(group):
    rng = np.random.default_rng(group)
    heads = Heads(B=1, Hq=2 * group, Hkv=2, D=32, Dv=32)
    past = make_cache(rng, heads, [64, 10], ["INT8"], ["UINT4"])
    for s in (1, 2, 6):
        check_call(make_call(rng, heads, past, s))


@pytest.mark.parametrize(("d", "dv"), [(1, 1), (1, 64), (64, 1), (80, 48), (96, 128), (128, 128), (256, 32)])
def test_head_sizes(d, dv):
    rng = np.random.default_rng(d)
    heads = Heads(B=1, Hq=4, Hkv=1, D=d, Dv=dv)
    past = make_cache(rng, heads, [20, 20, 20, 20], ["FLOAT", "INT8", "INT4"], ["INT4", "FLOAT16"])
    for s in (1, 8):
        check_call(make_call(rng, heads, past, s))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("s", [1, 4, 50])
def test_types(dtype, s):
    rng = np.random.default_rng(s)
    past = make_cache(rng, GQA, [30, 30, 30, 1], MIXED, MIXED)
    check_call(make_call(rng, GQA, past, s, dtype))
    check_call(make_call(rng, GQA, past, s, dtype, key=NORMAL["INT4"], value=NORMAL["FLOAT"]))


@pytest.mark.parametrize("s", [1, 4, 40])
@pytest.mark.parametrize(
    "attributes",
    [
        {"left_window_size": 0},
        {"left_window_size": 1},
        {"left_window_size": 15},
        {"left_window_size": 16},
        {"left_window_size": 63},
        {"left_window_size": 64},
        {"left_window_size": 1 << 62},
        {"is_causal": 0},
        {"is_causal": 0, "left_window_size": 20},
        {"softcap": 2.0},
        {"softcap": -1.0},
        {"scale": 0.0},
        {"scale": -0.4},
        {"scale": 1.0, "softcap": 3.0, "left_window_size": 70},
    ],
    ids=str,
)
def test_attributes(attributes, s):
    rng = np.random.default_rng(s)
    past = make_cache(rng, GQA, [16] * 7 + [3], MIXED, MIXED)
    check_call(make_call(rng, GQA, past, s, **attributes))


def test_a_window_does_not_read_older_pages():
    """Pages before the window may hold NaN in their valid rows: they are never decoded."""
    rng = np.random.default_rng(0)
    past = bytearray(make_cache(rng, GQA, [64] * 4, spare=0))
    clean = bytes(past)
    first = _core.parse_paged_cache(clean)[0]
    for side in ("key", "value"):
        begin, size = first[side]["offset"], first[side]["nbytes"]
        past[begin : begin + size] = np.full(size // 4, np.nan, np.float32).tobytes()
    for s in (1, 20):
        call = make_call(rng, GQA, clean, s, left_window_size=100)
        expected = call.run()["Y"]
        call.past = bytes(past)
        np.testing.assert_array_equal(call.run()["Y"], expected)


@pytest.mark.parametrize("s", [1, 3, 70])
def test_float_pages_agree_with_attention(s):
    """The same kernels over the same numbers; only the borders between runs differ."""
    rng = np.random.default_rng(s)
    heads = Heads(B=2, Hq=8, Hkv=2, D=64, Dv=48)
    past = make_cache(rng, heads, [64] * 10 + [17])
    call = make_call(rng, heads, past, s)
    past_key, past_value = decoded(past, heads)
    inputs = {"Q": call.q, "K": call.k, "V": call.v, "past_key": past_key, "past_value": past_value}
    expected = _core.attention(inputs, {"is_causal": 1})["Y"]
    np.testing.assert_allclose(call.run()["Y"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("s", [1, 2, 9, 100])
def test_thread_counts_give_the_same_bits(s):
    """2000 tokens and two heads: the keys are split over threads when queries are few."""
    rng = np.random.default_rng(s)
    heads = Heads(B=1, Hq=4, Hkv=2, D=64, Dv=64)
    past = make_cache(rng, heads, paged(48, 2000), MIXED, MIXED[1:])
    call = make_call(rng, heads, past, s, key=NORMAL["INT8"], value=NORMAL["INT4"])
    expected = call.run("present", "appended")
    check_call(call, threads=2)
    for threads in (2, 3, 8):
        got = call.run("present", "appended", threads=threads)
        for name, x in expected.items():
            np.testing.assert_array_equal(got[name], x, err_msg=name)


def test_unaligned_and_read_only_caches():
    rng = np.random.default_rng(0)
    past = make_cache(rng, GQA, [16, 16, 3], MIXED, MIXED)
    call = make_call(rng, GQA, past, 2)
    expected = call.run("present")
    for shift in range(1, 9):
        buffer = np.empty(len(past) + shift, np.uint8)
        buffer[shift:] = np.frombuffer(past, np.uint8)
        buffer.flags.writeable = False
        call.past = buffer[shift:]
        got = call.run("present")
        np.testing.assert_array_equal(got["Y"], expected["Y"])
        np.testing.assert_array_equal(got["present"], expected["present"])


def test_a_name_of_the_cache_stays():
    rng = np.random.default_rng(0)
    past = make_cache(rng, GQA, [3]) + b"\x12\x07layer 3" + make_cache(rng, GQA, [])
    call = make_call(rng, GQA, past, 2)
    check_call(call)
    call.past = b"\x12\x07layer 3"  # a name, and no page
    check_call(call)
