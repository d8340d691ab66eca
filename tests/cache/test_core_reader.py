"""The C++ reader takes what protobuf and the reference take, reads the same from it, and refuses the rest."""

import numpy as np
import pytest
from cache import compare, golden
from cache import wire_writer as w
from cache.defects import DEFECTS, base, broken, missing_words
from cache.strategies import scrambled_caches
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_ai_rt import _core
from onnx_ai_rt.proto import PagedCacheProto

GOLDEN = {path.stem: path.read_bytes() for path in sorted(golden.FOLDER.glob("*.pb"))}


@compare.needs_compiled_protobuf
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_files(name):
    assert compare.assert_same_reading(GOLDEN[name])


@compare.needs_compiled_protobuf
@pytest.mark.parametrize("name", GOLDEN)
def test_every_truncation(name):
    data = GOLDEN[name]
    for size in range(len(data)):
        compare.assert_same_reading(data[:size])


@compare.needs_compiled_protobuf
@pytest.mark.parametrize("name", GOLDEN)
def test_every_byte_corrupted(name):
    """Each bit flipped, and the values at which the wire format changes its mind."""
    data = GOLDEN[name]
    for i, byte in enumerate(data):
        for new in {*(byte ^ (1 << bit) for bit in range(8)), 0, 1, 0x7F, 0x80, 0xFF} - {byte}:
            compare.assert_same_reading(data[:i] + bytes([new]) + data[i + 1 :])


@compare.needs_compiled_protobuf
@pytest.mark.parametrize("name", GOLDEN)
def test_every_byte_removed_or_doubled(name):
    data = GOLDEN[name]
    for i in range(len(data)):
        compare.assert_same_reading(data[:i] + data[i + 1 :])
        compare.assert_same_reading(data[:i] + data[i : i + 1] + data[i:])


@given(scrambled_caches())
@settings(max_examples=150)
def test_any_way_to_write_a_cache(case):
    cache, data = case
    assert compare.assert_same_reading(data)
    got = _core.parse_paged_cache(data)
    assert len(got) == len(cache.blocks)
    assert compare.core_headers(got) == compare.reference_headers(compare.read_reference(cache.SerializeToString()))


@compare.needs_compiled_protobuf
@given(scrambled_caches(2), st.data())
@settings(max_examples=150)
def test_damaged_caches(case, draw):
    data = bytearray(case[1])
    for _ in range(draw.draw(st.integers(1, 3))):
        if data:
            data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    compare.assert_same_reading(bytes(data))


@compare.needs_compiled_protobuf
@given(st.binary(max_size=60))
@settings(max_examples=500)
def test_any_bytes(data):
    compare.assert_same_reading(data)


@pytest.mark.parametrize("defect", DEFECTS, ids=[d.name for d in DEFECTS])
def test_defects(defect):
    with pytest.raises(ValueError, match=r"^Op: input past, block \d.*: expected .*, got ") as error:
        _core.parse_paged_cache(broken(defect).SerializeToString(), "Op", "past")
    message = str(error.value)
    assert "\n" not in message
    assert missing_words(message, defect.words) == []


BAD_WIRE = {
    "field number 0": (b"\x00\x01", "field number 0"),
    "wire type 6": (b"\x7e\x01", "wire type"),
    "tag of 6 bytes": (b"\x88\x80\x80\x80\x80\x00\x01", "tag of more than 5 bytes"),
    "tag of 33 bits": (b"\x88\x80\x80\x80\x10\x01", "tag of more than 32 bits"),
    "cut tag": (b"\x88", "tag that is cut off"),
    "cut number": (b"\x78\x80", "number that is cut off"),
    "number of 11 bytes": (b"\x78" + b"\x80" * 10 + b"\x00", "more than 10 bytes"),
    "length beyond the end": (b"\x12\x05abcd", "longer than what holds it"),
    "length of 6 bytes": (b"\x12\x80\x80\x80\x80\x80\x00", "length of more than 5 bytes"),
    "huge length": (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "longer than what holds it"),
    "stray end of a group": (b"\x7c", "was not begun"),
    "end of another group": (b"\x7b\x74", "another group"),
    "group without end": (b"\x7b", "does not end"),
    "101 groups": (b"\x7b" * 101 + b"\x7c" * 101, "100 deep"),
    "cut list of floats": (w.data(1, w.data(3, w.data(4, b"abc"))), "4-byte numbers"),
    "cut list of doubles": (w.data(1, w.data(3, w.data(10, b"abc"))), "8-byte numbers"),
    "broken message that is not used": (w.data(1, w.data(3, w.data(3, b"\x08"))), "cut off"),
}


@compare.needs_compiled_protobuf
@pytest.mark.parametrize("name", BAD_WIRE)
def test_bytes_that_are_no_message(name):
    data, reason = BAD_WIRE[name]
    with pytest.raises(ValueError, match=f"^Op: input cache.*expected a serialized PagedCacheProto, got .*{reason}"):
        _core.parse_paged_cache(data, "Op")
    assert not compare.assert_same_reading(data)


@compare.needs_compiled_protobuf
@pytest.mark.parametrize("place", ["cache", "block", "tensor", "type"])
def test_nesting_ends_where_protobufs_does(place):
    def data(groups: int) -> bytes:
        inner = b"\x7b" * groups + b"\x7c" * groups
        if place == "cache":
            return inner
        if place == "block":
            return w.data(1, inner)
        if place == "tensor":
            return w.data(1, w.data(3, inner))
        return w.data(1, w.data(4, w.data(3, w.data(1, w.data(2, inner)))))

    def is_message(data: bytes, reader) -> bool:
        try:
            reader(data)
        except Exception as error:  # protobuf's DecodeError, or our ValueError
            return "serialized" not in str(error) and type(error).__name__ != "DecodeError"
        return True

    taken = [is_message(data(n), PagedCacheProto.FromString) for n in range(90, 103)]
    assert taken == [is_message(data(n), _core.parse_paged_cache) for n in range(90, 103)]
    assert set(taken) == {True, False}


def test_any_alignment():
    data = base().SerializeToString()
    expected = _core.parse_paged_cache(data)
    for shift in range(1, 16):
        buffer = np.empty(len(data) + shift, np.uint8)
        buffer[shift:] = np.frombuffer(data, np.uint8)
        assert _core.parse_paged_cache(buffer[shift:]) == expected


def test_headers_point_into_the_bytes():
    cache = base()
    data = cache.SerializeToString()
    blocks = _core.parse_paged_cache(data)
    for block, message in zip(blocks, cache.blocks, strict=True):
        part = PagedCacheProto.FromString(data[block["begin"] : block["end"]])
        assert list(part.blocks) == [message]
        payload = block["value"]
        field = getattr(message, message.WhichOneof("value_payload"))
        assert data[payload["offset"] :][: payload["nbytes"]] == field.raw_data


def test_ten_thousand_pages_quickly():
    import time

    page = base().blocks[1].SerializeToString()
    one = PagedCacheProto()
    for i in range(10_000):
        block = one.blocks.add()
        block.MergeFromString(page)
        block.start, block.length = 3 * i, 3
    data = one.SerializeToString()
    begin = time.perf_counter()
    assert len(_core.parse_paged_cache(data)) == 10_000
    assert time.perf_counter() - begin < 2  # measured 0.05 s, nearly all of it for the Python objects
