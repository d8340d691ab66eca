"""The blocks that PagedAttention makes of the new tokens."""

import ml_dtypes
import numpy as np
import pytest
from cache.defects import DEFECTS, broken
from cache.strategies import ALL_FORMATS
from support.paged_calls import NORMAL, TYPES, Heads, PagedCall, check_call, check_outputs, make_cache, make_call

from onnx_ai_rt import _core
from onnx_ai_rt.proto import PagedCacheProto

HEADS = Heads(B=2, Hq=2, Hkv=2, D=7, Dv=5)


def pages(data: bytes) -> list[tuple[int, int, int]]:
    """start, length and capacity of each page."""
    return [(b["start"], b["length"], b["key"]["shape"][2]) for b in _core.parse_paged_cache(data)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("value", [None, *ALL_FORMATS])
@pytest.mark.parametrize("key", [None, *ALL_FORMATS])
def test_every_pair_of_formats(key, value, dtype):
    rng = np.random.default_rng(0)
    past = make_cache(rng, HEADS, [3])
    check_call(make_call(rng, HEADS, past, 5, dtype, key=NORMAL.get(key), value=NORMAL.get(value), block_size=2))


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 6, 16, 17, 1 << 62])
@pytest.mark.parametrize("s", [1, 2, 3, 5, 6, 17])
def test_block_sizes(s, block_size):
    rng = np.random.default_rng(1)
    past = make_cache(rng, HEADS, [16, 3])
    call = make_call(rng, HEADS, past, s, key=NORMAL["INT4"], value=NORMAL["UINT2"], block_size=block_size)
    check_call(call)
    lengths = [min(block_size, s - i) for i in range(0, s, block_size)]
    starts = [19 + i for i in range(0, s, block_size)]
    present = bytes(call.run("present")["present"])
    assert pages(present)[2:] == list(zip(starts, lengths, lengths, strict=True))


def test_the_default_block_size_is_16():
    rng = np.random.default_rng(2)
    call = make_call(rng, HEADS, b"", 40)
    assert pages(bytes(call.run("appended")["appended"])) == [(0, 16, 16), (16, 16, 16), (32, 8, 8)]


def test_many_new_tokens_on_many_threads():
    """Blocks large and small are cut into jobs; every byte is written once."""
    rng = np.random.default_rng(3)
    heads = Heads(B=1, Hq=3, Hkv=3, D=33, Dv=65)
    for block_size in (16, 5000):
        for key, value in ((None, None), (NORMAL["INT4"], NORMAL["UINT2"])):
            call = make_call(rng, heads, b"", 3001, key=key, value=value, block_size=block_size, left_window_size=5)
            for threads in (1, 4):
                got = call.run("present", "appended", threads=threads)
                check_outputs(call, got)


def test_a_partly_filled_page_is_sealed():
    rng = np.random.default_rng(4)
    past = make_cache(rng, HEADS, [5], spare=11)  # 11 rows are free, and stay so
    call = make_call(rng, HEADS, past, 2)
    present = bytes(call.run("present")["present"])
    assert present.startswith(past)
    assert pages(present) == [(0, 5, 16), (5, 2, 2)]


def test_only_what_is_asked_for():
    rng = np.random.default_rng(5)
    call = make_call(rng, HEADS, make_cache(rng, HEADS, [3]), 2)
    for request in ((), ("present",), ("appended",), ("present", "appended")):
        got = call.run(*request)
        assert set(got) == {"Y", *request}
        np.testing.assert_array_equal(got["Y"], call.run()["Y"])


def test_decoding_token_by_token():
    """Each step's present is the next one's past; in float pages the tokens are those of one long call."""
    rng = np.random.default_rng(6)
    whole = make_call(rng, HEADS, b"", 40)
    past = b""
    rows = []
    for t in range(40):
        at = slice(t, t + 1)
        tokens = [np.ascontiguousarray(x[:, :, at]) for x in (whole.q, whole.k, whole.v)]
        got = PagedCall(HEADS, past, *tokens).run("present")
        past = bytes(got["present"])
        rows.append(got["Y"])
    np.testing.assert_allclose(np.concatenate(rows, axis=2), whole.oracle()[0], rtol=2e-5, atol=4e-6)
    assert pages(past) == [(t, 1, 1) for t in range(40)]
    assert PagedCacheProto.FromString(past).blocks[39].key.raw_data == whole.k[:, :, 39].tobytes()


def test_appended_does_not_grow_with_the_past():
    rng = np.random.default_rng(7)
    sizes = []
    for pages_before in (1, 10, 100, 1000):
        past = make_cache(rng, HEADS, [16] * pages_before)
        sizes.append(
            make_call(rng, HEADS, past, 1, key=NORMAL["INT8"], value=NORMAL["INT8"]).run("appended")["appended"].size
        )
    assert max(sizes) - min(sizes) <= 2  # `start` takes a byte or two more


def failure(call: PagedCall) -> str:
    with pytest.raises(ValueError, match=r"^ai\.rt::PagedAttention: ") as error:
        call.run("present", "appended")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("side", ["k", "v"])
def test_new_values_that_are_not_finite(side, dtype, bad):
    rng = np.random.default_rng(8)
    for target in (None, NORMAL["INT8"], NORMAL["FLOAT16"]):
        call = make_call(rng, HEADS, make_cache(rng, HEADS, [3]), 4, dtype, key=target, value=target)
        getattr(call, side)[1, 0, 2, 3] = bad
        message = failure(call)
        assert f"input {side.upper()}: expected finite values" in message
        assert f"got {'nan' if np.isnan(bad) else bad} at batch 1, head 0, token 2, column 3" in message


def test_new_values_beyond_the_range_of_their_format():
    rng = np.random.default_rng(9)
    half, bfloat = NORMAL["FLOAT16"], NORMAL["BFLOAT16"]
    largest_bfloat = float(np.finfo(np.float32).max)
    for dtype, fits, too_large, target in (
        (np.float32, 65519.0, 65520.0, half),
        (ml_dtypes.bfloat16, 65280.0, 65536.0, half),
        (np.float32, 3.3895e38, largest_bfloat, bfloat),
    ):
        call = make_call(rng, HEADS, b"", 2, dtype, key=target, scale=0.0)
        call.k[0, 1, 1, 2] = -fits
        assert call.run("appended")
        call.k[0, 1, 1, 2] = -too_large
        message = failure(call)
        assert f"input K: expected finite values, within the range of {target[0].lower()}" in message
        assert "at batch 0, head 1, token 1, column 2" in message
    call = make_call(rng, HEADS, b"", 2, key=NORMAL["INT4"], scale=0.0)
    call.k[0, 1, 1, 2] = largest_bfloat  # saturates
    check_call(call)


def test_max_tokens():
    rng = np.random.default_rng(10)
    past = make_cache(rng, HEADS, [5, 3])
    for limit in (0, -1, 10, 11):
        make_call(rng, HEADS, past, 2, max_tokens=limit).run()
    message = failure(make_call(rng, HEADS, past, 2, max_tokens=9))
    assert "input past: expected at most 9 tokens together with the new ones (max_tokens), got 8 and 2" in message
    assert "expected at most 1 tokens" in failure(make_call(rng, HEADS, b"", 2, max_tokens=1))


def test_block_size_must_be_positive():
    rng = np.random.default_rng(11)
    for block_size in (0, -1):
        message = failure(make_call(rng, HEADS, b"", 1, block_size=block_size))
        assert f"attribute block_size: expected at least 1, got {block_size}" in message


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.name)
def test_a_past_that_is_no_cache(defect):
    rng = np.random.default_rng(12)
    message = failure(make_call(rng, HEADS, broken(defect).SerializeToString(), 1))
    assert message.startswith("ai.rt::PagedAttention: input past, block ")


def test_encodings_are_checked():
    rng = np.random.default_rng(12)
    call = make_call(rng, HEADS, b"", 1, key=("INT8", 0.0, 0))
    assert "input key_scale: expected a positive and finite number, got 0" in failure(call)
    call = make_call(rng, HEADS, b"", 1, value=("INT4", 1.0, 8))
    assert "input value_zero_point: expected a code of int4, got 8" in failure(call)
