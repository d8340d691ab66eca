"""The golden files: bytes that the independent writer made, read and written by the reference."""

import contextlib

import numpy as np
import pytest
from cache.golden import FOLDER, GOLDEN, files, worked_example

from onnx_ai_rt.proto import PagedCacheProto
from onnx_ai_rt.reference import wire
from onnx_ai_rt.reference.paged_cache import CacheError, parse, validate
from onnx_ai_rt.reference.quantize import FORMATS
from onnx_ai_rt.reference.quantize_paged_cache import quantize_paged_cache


def test_files_are_what_the_writer_makes():
    assert {p.name: p.read_bytes() for p in FOLDER.iterdir()} == files()


@pytest.mark.parametrize("name", GOLDEN)
def test_read(name):
    data, pages = GOLDEN[name]
    blocks = validate(parse(data))
    assert len(blocks) == len(pages)
    for block, page in zip(blocks, pages, strict=True):
        assert (block.start, block.length) == (page.start, page.length)
        assert (block.key.format.name, block.value.format.name) == (page.key_format, page.value_format)
        for payload, rows in ((block.key, page.key), (block.value, page.value)):
            decoded = payload.decode()
            expected = np.array(rows, np.float32)
            np.testing.assert_array_equal(decoded, expected)
            np.testing.assert_array_equal(np.signbit(decoded), np.signbit(expected))


@pytest.mark.parametrize("name", GOLDEN)
def test_every_truncation(name):
    data, _ = GOLDEN[name]
    outer = parse(data)
    clean = 0
    for size in range(len(data)):
        with contextlib.suppress(CacheError):  # cut inside a field
            assert len(validate(parse(data[:size]))) <= len(outer.blocks)
            clean += 1
    assert clean == len(list(wire.read_fields(data)))  # 0 bytes and each end of a field but the last


def test_worked_example():
    original, quantized, restored = worked_example()

    def dtype(name):
        return FORMATS[name].dtype

    one, pages = np.float32(1), np.array([1])
    got = quantize_paged_cache(
        original, pages, np.float32(0.25), np.zeros((), dtype("INT4")), np.float32(0.125), np.array(8, dtype("UINT4"))
    )
    assert got == quantized
    markers = np.zeros((), dtype("FLOAT16")), np.zeros((), dtype("BFLOAT16"))
    assert quantize_paged_cache(got, pages, one, markers[0], one, markers[1]) == restored
    assert [len(p.raw_data) for p in PagedCacheProto.FromString(got).blocks[1].ListFields()[2][1:]] == [4]
    for payload, expected in (
        (validate(parse(restored))[1].key, [-1.25, -0.5, 0.25, 1.25]),
        (validate(parse(restored))[1].value, [-0.75, -0.25, 0.25, 0.75]),
    ):
        np.testing.assert_array_equal(payload.decode().reshape(-1), expected)
