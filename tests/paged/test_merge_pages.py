"""merge_pages: neighbours become full pages with the same values and codes, in place, and nothing else changes."""

import numpy as np
import pytest
from cache import wire_writer as w
from cache.strategies import ALL_FORMATS, cache_bytes, caches
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paged_calls import NORMAL, Heads, PagedCall, decoded, make_cache, make_call, payload, put

from onnx_ai_rt import _core
from onnx_ai_rt.proto import PagedCacheProto
from onnx_ai_rt.reference.paged_cache import validate
from onnx_ai_rt.reference.quantize import FORMATS, unpack_codes

HEADS = Heads(B=2, Hq=3, Hkv=3, D=5, Dv=3)


def merge(data: bytes, block_size: int, begin: int = 0) -> bytes:
    """The whole buffer after merging what lies behind `begin`; bytes behind the run must stay."""
    buffer = np.frombuffer(data + b"behind", np.uint8).copy()
    end = _core.merge_pages(buffer, begin, len(data), block_size)
    assert begin <= end <= len(data)
    assert bytes(buffer[len(data) :]) == b"behind"
    return bytes(buffer[:end])


def lengths(data: bytes) -> list[int]:
    return [block.length for block in PagedCacheProto.FromString(data).blocks]


def valid_codes(message, length: int) -> np.ndarray:
    """The stored values or codes of the valid rows."""
    if hasattr(message, "affine"):
        shape = [d.dim_value for d in message.logical_type.tensor_type.shape.dim]
        format = next(f for f in FORMATS.values() if f.data_type == message.affine.storage_type)
        return unpack_codes(message.raw_data, format, int(np.prod(shape))).reshape(shape)[:, :, :length]
    format = next(f for f in FORMATS.values() if f.data_type == message.data_type)
    rows = np.frombuffer(message.raw_data, f"u{format.bits // 8}").reshape(list(message.dims))
    return rows[:, :, :length]


def all_codes(data: bytes, side: str) -> np.ndarray:
    blocks = PagedCacheProto.FromString(data).blocks
    return np.concatenate([valid_codes(getattr(b, b.WhichOneof(f"{side}_payload")), b.length) for b in blocks], axis=2)


@pytest.mark.parametrize("value", ALL_FORMATS)
@pytest.mark.parametrize("key", ALL_FORMATS)
def test_one_token_pages_of_every_pair_of_formats(key, value):
    """Rows of 5 and 3 codes begin inside bytes."""
    rng = np.random.default_rng(0)
    data = make_cache(rng, HEADS, [1] * 21, [key], [value])
    merged = merge(data, 8)
    assert lengths(merged) == [8, 8, 5]
    for side in ("key", "value"):
        np.testing.assert_array_equal(all_codes(merged, side), all_codes(data, side))
    for block in validate(PagedCacheProto.FromString(merged)):
        assert block.key.shape[2] == block.length
    # The bytes are those that a call with all tokens at once would have appended.
    assert merged == PagedCacheProto.FromString(merged).SerializeToString()


@pytest.mark.parametrize("key", ["FLOAT", "BFLOAT16", "INT8", "UINT4", "INT2"])
def test_a_decode_loop_makes_the_bytes_of_one_long_call(key):
    rng = np.random.default_rng(1)
    whole = make_call(rng, HEADS, b"", 20, key=NORMAL[key], value=NORMAL["INT4"], block_size=6)
    past = b""
    for t in range(20):
        tokens = [np.ascontiguousarray(x[:, :, t : t + 1]) for x in (whole.q, whole.k, whole.v)]
        past = bytes(PagedCall(HEADS, past, *tokens, {}, whole.key, whole.value).run("present")["present"])
    assert merge(past, 6) == whole.oracle()[1]


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 12), st.integers(0, 2), st.sampled_from(ALL_FORMATS))
@settings(max_examples=60)
def test_greedy_from_the_left(pages, block_size, spare, name):
    rng = np.random.default_rng(2)
    data = make_cache(rng, HEADS, pages, [name], [name], spare=spare)
    merged = merge(data, block_size)
    expected = []
    for length in pages:
        if expected and expected[-1] + length <= block_size:
            expected[-1] += length
        else:
            expected.append(length)
    assert lengths(merged) == expected
    for got, want in zip(decoded(merged, HEADS), decoded(data, HEADS), strict=True):
        np.testing.assert_array_equal(got, want)
    assert merge(merged, block_size) == merged


def test_only_the_run_is_read_and_changed():
    rng = np.random.default_rng(3)
    data = make_cache(rng, HEADS, [4, 1, 1, 1])
    begin = _core.parse_paged_cache(data)[0]["end"]
    broken = b"\xff" * begin + data[begin:]
    merged = merge(broken, 4, begin)
    assert merged[:begin] == broken[:begin]
    whole = data[:begin] + merged[begin:]
    assert lengths(whole) == [4, 3]
    assert [x.tolist() for x in decoded(whole, HEADS)] == [x.tolist() for x in decoded(data, HEADS)]


def test_other_formats_and_parameters_stay_apart():
    rng = np.random.default_rng(4)
    data = make_cache(rng, HEADS, [1] * 6, ["INT8", "INT8", "UINT8"], ["FLOAT"])
    assert lengths(merge(data, 8)) == [2, 1, 2, 1]
    cache = PagedCacheProto()
    for i, (scale, zero) in enumerate(((1.0, 0), (1.0, 0), (1.5, 0), (1.5, 1), (1.5, 1))):
        block = cache.blocks.add(start=i, length=1)
        put(block, "key", payload(np.ones((1, 1, 1, 4)), 1, NORMAL["FLOAT"]))
        put(block, "value", payload(np.ones((1, 1, 1, 4)), 1, ("INT4", scale, zero)))
    assert lengths(merge(cache.SerializeToString(), 8)) == [2, 1, 2]


def test_a_full_page_stays_byte_for_byte():
    rng = np.random.default_rng(5)
    full = make_cache(rng, HEADS, [4], spare=3)
    data = full + make_cache(rng, HEADS, [4, 1, 1])[len(make_cache(rng, HEADS, [4])) :]
    merged = merge(data, 4)
    assert merged.startswith(full)
    assert lengths(merged) == [4, 2]


@pytest.mark.parametrize(
    "change",
    [
        lambda block: setattr(block.key, "name", "k"),
        lambda block: setattr(block.value, "doc_string", ""),
        lambda block: block.MergeFromString(w.number(99, 7)),
        lambda block: block.key.MergeFromString(w.data(99, b"x")),
        lambda block: block.key.metadata_props.add(key="a"),
        lambda block: setattr(block.value, "data_location", 0),
    ],
)
def test_pages_with_something_to_lose_stay_byte_for_byte(change):
    rng = np.random.default_rng(6)
    cache = PagedCacheProto.FromString(make_cache(rng, HEADS, [1] * 7))
    change(cache.blocks[3])
    data = cache.SerializeToString()
    merged = merge(data, 8)
    assert lengths(merged) == [3, 1, 3]
    assert cache.blocks[3].SerializeToString() in merged


def test_what_lies_between_pages_stays():
    rng = np.random.default_rng(7)
    data = make_cache(rng, HEADS, [1] * 4)
    middle = _core.parse_paged_cache(data)[1]["end"]
    data = data[:middle] + b"\x12\x01n" + data[middle:] + b"\x1a\x03doc"
    merged = merge(data, 8)
    assert lengths(merged) == [2, 2]
    message = PagedCacheProto.FromString(merged)
    assert (message.name, message.doc_string) == ("n", "doc")


@given(caches(), st.data(), st.integers(1, 12))
@settings(max_examples=80)
def test_any_cache_keeps_its_tokens(cache, draw, block_size):
    """Of any writer: typed fields, unknown fields, every granularity."""
    data = draw.draw(cache_bytes(cache))
    merged = merge(data, block_size)
    before, after = validate(cache), validate(PagedCacheProto.FromString(merged))
    assert max([b.length for b in after], default=0) <= max([block_size, *(b.length for b in before)])
    for side in ("key", "value"):
        rows = [
            np.concatenate([getattr(b, side).decode() for b in blocks], axis=2) if blocks else None
            for blocks in (before, after)
        ]
        np.testing.assert_array_equal(*rows)
    assert PagedCacheProto.FromString(merged).name == cache.name


def test_errors_leave_the_buffer_as_it_was():
    rng = np.random.default_rng(8)
    data = make_cache(rng, HEADS, [1, 1, 1])
    buffer = np.frombuffer(data, np.uint8).copy()
    for begin, end, block_size, words in (
        (0, len(data) - 1, 4, "merge_pages: input buffer"),
        (1, len(data), 4, "merge_pages: input buffer"),
        (0, len(data) + 1, 4, "expected 0 <= begin <= end <= "),
        (-1, 4, 4, "expected 0 <= begin <= end <= "),
        (5, 4, 4, "expected 0 <= begin <= end <= "),
        (0, len(data), 0, "block_size: expected at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=words):
            _core.merge_pages(buffer, begin, end, block_size)
        assert bytes(buffer) == data
    buffer.flags.writeable = False
    with pytest.raises(ValueError, match="expected a writable contiguous buffer"):
        _core.merge_pages(buffer, 0, len(data), 4)
    gap = make_cache(rng, HEADS, [1, 1, 1])
    second = _core.parse_paged_cache(gap)[1]
    with pytest.raises(ValueError, match="block 1: expected start 1"):
        merge(gap[: second["begin"]] + gap[second["end"] :], 4)


def test_an_empty_run():
    assert merge(b"", 4) == b""
