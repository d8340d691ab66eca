"""The friendly layer: numpy in and out."""

import os
import re
import stat
import time

import ml_dtypes
import numpy as np
import pytest
from cache import wire_writer as w
from cache.defects import base
from cache.golden import GOLDEN
from cache.strategies import ALL_FORMATS, BITS, cache_bytes, caches
from hypothesis import given, settings
from hypothesis import strategies as st

import onnx_ai_rt
from onnx_ai_rt import CacheError, PagedCache, PagedCacheProto
from onnx_ai_rt.cache.progress import progress
from onnx_ai_rt.cli import main
from onnx_ai_rt.reference.paged_cache import validate
from onnx_ai_rt.reference.quantize import FORMATS
from onnx_ai_rt.reference.quantize_paged_cache import quantize_paged_cache

F32 = np.float32


def arrays(tokens=10, batch=2, heads=3, key_width=5, value_width=4, dtype=F32, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(batch, heads, tokens, key_width)).astype(dtype),
        rng.normal(size=(batch, heads, tokens, value_width)).astype(dtype),
    )


@pytest.mark.parametrize("dtype", [F32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("page_size", [1, 3, 10, 64])
def test_from_dense_and_back(dtype, page_size):
    key, value = arrays(dtype=dtype)
    cache = PagedCache.from_dense(key, value, page_size)
    assert cache.tokens == 10
    assert [p.length for p in cache.pages] == [min(page_size, 10 - i) for i in range(0, 10, page_size)]
    assert all(p.capacity == p.length for p in cache.pages)
    back = cache.to_dense()
    np.testing.assert_array_equal(back[0], key.astype(F32))
    np.testing.assert_array_equal(back[1], value.astype(F32))
    expected = {F32: "FLOAT", np.float64: "FLOAT", np.float16: "FLOAT16"}.get(dtype, "BFLOAT16")
    assert {p.key.format_name for p in cache.pages} == {expected}


@pytest.mark.parametrize("key_format", ALL_FORMATS)
@pytest.mark.parametrize("value_format", ["FLOAT", "UINT4"])
def test_formats(key_format, value_format):
    key, value = arrays()
    direct = PagedCache.from_dense(key, value, 4, key_format, value_format)
    assert {(p.key.format_name, p.value.format_name) for p in direct.pages} == {(key_format, value_format)}
    assert direct == PagedCache.from_dense(key, value, 4).quantize(key_format, value_format)
    assert PagedCache(direct.to_bytes())._headers == direct._headers
    for page, error in zip(direct.pages, direct.errors((key, value)), strict=True):
        rows = page.to_dense()
        part = slice(page.start, page.start + page.length)
        assert error.page == page.index
        assert error.key_max == pytest.approx(np.abs(rows[0] - key[:, :, part]).max())
        assert error.value_rms == pytest.approx(np.sqrt(np.mean((rows[1] - value[:, :, part]) ** 2)))
        if key_format in BITS:
            assert error.key_max <= page.key.scale * 0.5001
    assert next(direct.errors(direct)).key_max == 0


def test_append_leaves_old_bytes_and_views():
    key, value = arrays()
    cache = PagedCache()
    views = []
    for i in range(10):
        views.append((cache.to_array(), cache.to_bytes()))
        cache.append(key[:, :, i : i + 1], value[:, :, i : i + 1], key_format="INT8" if i % 2 else None)
    for view, content in views:
        assert view.tobytes() == content
        assert cache.to_bytes().startswith(content)
    assert len(cache.pages) == 10
    assert [b.start for b in validate(cache.to_proto())] == list(range(10))
    assert PagedCache(cache.to_bytes())._headers == cache._headers


def test_append_does_not_write_into_the_callers_array():
    key, value = arrays()
    data = np.frombuffer(PagedCache.from_dense(key, value).to_bytes() + bytes(1000), np.uint8).copy()
    cache = PagedCache(data[:-1000])
    cache.append(key, value)
    assert not data[-1000:].any()


def test_no_copy():
    data = np.frombuffer(PagedCache.from_dense(*arrays()).to_bytes(), np.uint8)
    assert np.shares_memory(PagedCache(data).to_array(), data)
    assert not PagedCache(data).to_array().flags.writeable


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_quantize_is_the_operator(data):
    cache = data.draw(caches(max_capacity=4))
    raw = data.draw(cache_bytes(cache))
    pages = data.draw(st.lists(st.sampled_from(range(len(cache.blocks))), unique=True)) if cache.blocks else []
    key_format, value_format = data.draw(st.tuples(st.sampled_from(ALL_FORMATS), st.sampled_from(sorted(BITS))))
    expected = outcome(
        lambda: quantize_paged_cache(
            raw,
            np.array(pages, np.int64),
            F32(0.3),
            np.zeros((), FORMATS[key_format].dtype),
            F32(0.1),
            np.ones((), FORMATS[value_format].dtype),
        )
    )
    got = outcome(
        lambda: (
            PagedCache(raw)
            .quantize(key_format, value_format, pages=pages, key_scale=0.3, value_scale=0.1, value_zero_point=1)
            .to_bytes()
        )
    )
    assert got == expected


def outcome(make):
    """The bytes, or None for a CacheError."""
    try:
        return make()
    except CacheError:
        return None


def test_statistics():
    key, value = arrays(tokens=8, batch=1, heads=2, key_width=16, value_width=16)
    cache = PagedCache.from_dense(key, value, 4, "INT8", "INT4")
    total = cache.statistics
    assert (total.tokens, total.values, total.nbytes) == (8, 512, len(cache.to_bytes()))
    assert total.payload_bytes == 256 + 128
    assert total.bits_per_value == 8 * total.nbytes / 512
    assert total.float_ratio == 2048 / total.nbytes
    assert sum(p.statistics.nbytes for p in cache.pages) == total.nbytes
    assert PagedCache().statistics.bits_per_value == 0
    assert PagedCache().statistics.float_ratio == 0


def test_repr():
    cache = PagedCache.from_dense(*arrays(), 4)
    assert repr(PagedCache()) == "PagedCache(empty)"
    text = repr(cache.quantize("INT8", "UINT2", pages=[0]))
    assert text.startswith(
        "PagedCache(10 tokens of 2 x 3 heads, widths 5 and 4; 3 pages: 1 INT8/UINT2, 2 FLOAT/FLOAT; "
    )
    assert re.search(r"bits a value, [\d.]+ times smaller than float\)$", text)
    assert repr(cache.pages[-1]).startswith("Page(2: tokens 8 to 9, key=FLOAT, value=FLOAT, ")


def test_pages_are_a_sequence():
    pages = PagedCache.from_dense(*arrays(), 4).pages
    assert [p.index for p in pages] == [0, 1, 2]
    assert pages[-1].index == 2
    assert [p.index for p in pages[1:]] == [1, 2]
    with pytest.raises(IndexError):
        pages[3]
    assert pages[1].to_proto().start == 4


def test_foreign_caches():
    for golden in GOLDEN.values():
        cache = PagedCache(golden.data)
        assert cache.to_bytes() == golden.data
        assert len(cache.pages) == len(golden.pages)
        for page, expected in zip(cache.pages, golden.pages, strict=True):
            np.testing.assert_array_equal(page.to_dense()[0], np.array(expected.key, F32))
            np.testing.assert_array_equal(page.to_dense()[1], np.array(expected.value, F32))
    header = PagedCache(GOLDEN["granular"].data).pages[0]
    assert (header.key.parameters, header.value.parameters) == ("per head", "by 2 columns")


def test_messages():
    cache = PagedCache.from_proto(base())
    assert cache.to_proto() == base()
    assert isinstance(cache.to_proto(), PagedCacheProto)


def test_files(tmp_path):
    cache = PagedCache.from_dense(*arrays(), 4, "INT4", "FLOAT16")
    path = tmp_path / "a.cache"
    path.write_bytes(b"old")
    cache.save(path)
    assert PagedCache.load(path) == cache
    assert path.read_bytes() == cache.to_bytes()
    PagedCache().save(str(path))
    assert PagedCache.load(str(path)).tokens == 0
    assert os.listdir(tmp_path) == ["a.cache"]


def test_files_follow_links_and_umask(tmp_path):
    cache = PagedCache.from_dense(*arrays())
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    cache.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert PagedCache.load(tmp_path / "real") == cache
    old = os.umask(0o027)
    try:
        cache.save(tmp_path / "new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.cache"
    path.write_bytes(b"old")

    def no_space(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        PagedCache.from_dense(*arrays()).save(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.cache"]


def test_damaged_file(tmp_path):
    path = tmp_path / "a.cache"
    path.write_bytes(PagedCache.from_dense(*arrays()).to_bytes()[:-1])
    with pytest.raises(CacheError, match=r"a\.cache.*expected a serialized PagedCacheProto"):
        PagedCache.load(path)
    with pytest.raises(FileNotFoundError):
        PagedCache.load(tmp_path / "missing")


K, V = arrays()
BAD_VALUES = K.copy()
BAD_VALUES[1, 2, 7, 3] = np.nan


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.append(K[0], V), r"key: expected the shape \[batch, kv_heads, tokens, width\], got \[3, 10, 5\]"),
        (lambda c: c.append(K, V[:, :1]), r"value: expected the shape \[2, 3, 10, 4\] of the pages before, got"),
        (lambda c: c.append(K, V[:, :, :9]), r"value: expected batch, heads and tokens \[2, 3, 10\] of the key, got"),
        (lambda c: c.append(K, V, 0), "page_size: expected 1 or more, got 0"),
        (lambda c: c.append(K.astype(np.int8), V), "key: expected float32, float16, bfloat16 or float64, got int8"),
        (lambda c: c.append(K, V, value_format="INT3"), "value_format: expected one of FLOAT, .*, got 'INT3'"),
        (lambda c: c.append(BAD_VALUES, V, 4), "key: expected finite values, got NaN or infinity in tokens 4 to 7"),
        (lambda c: c.append(K * F32(1e6), V, 4, "FLOAT16"), "key, .*: expected values in the range of FLOAT16"),
        (lambda c: c.quantize("INT8", "int8"), "value_format: expected one of .*, got 'int8'"),
        (lambda c: c.quantize("INT8", "INT8", key_scale=0), "key_scale: expected a positive finite float, got 0"),
        (lambda c: c.quantize("INT4", "INT8", key_scale=1, key_zero_point=8), "key_zero_point: .* -8 to 7, got 8"),
        (lambda c: c.quantize("INT8", "INT8", pages=[3]), r"pages: expected indices from 0 to 2 \(3 pages\), got 3"),
        (lambda c: c.quantize("INT8", "INT8", pages=[1, 1]), "pages: expected unique indices, got 1 twice"),
        (lambda c: list(c.errors((K, V[:, :1]))), "expected keys and values of shapes"),
    ],
)
def test_wrong_arguments(call, message):
    cache = PagedCache.from_dense(K, V, 4)
    before = cache.to_bytes()
    with pytest.raises(ValueError, match=message):
        call(cache)
    assert cache.to_bytes() == before


def test_wrong_array():
    with pytest.raises(TypeError, match=r"rank-1 uint8 array, got float32 of shape \[2\]"):
        PagedCache(np.zeros(2, F32))


def sparse_file(path):
    """A page of two payloads of 1.25 GiB, of which one row each is valid, as a file with holes."""
    rows = 5 << 26
    dims = b"".join(w.number(1, d) for d in (1, 1, rows, 1))
    raw = w.tag(9, w.BYTES) + w.varint(4 * rows)
    payload = dims + w.number(2, w.FLOAT) + raw
    size = len(payload) + 4 * rows
    fields = [w.tag(field, w.BYTES) + w.varint(size) + payload for field in (3, 5)]
    content = w.number(1, 0) + w.number(2, 1)
    total = len(content) + sum(len(f) + 4 * rows for f in fields)
    with open(path, "wb") as file:
        file.write(w.tag(1, w.BYTES) + w.varint(total) + content)
        for field, value in zip(fields, (1.5, -2.5), strict=True):
            file.write(field)
            end = file.tell() + 4 * rows
            file.write(w.floats(value))
            file.truncate(end)
            file.seek(end)
    return np.memmap(path, np.uint8, "r")


def test_more_than_two_gib(tmp_path, capsys):
    data = sparse_file(tmp_path / "large")
    assert data.size > 2 << 30
    cache = PagedCache(data)
    assert (cache.tokens, cache.pages[0].capacity, cache.nbytes) == (1, 5 << 26, data.size)
    assert [x.item() for x in cache.to_dense()] == [1.5, -2.5]
    for read in (cache.to_proto, cache.pages[0].to_proto):
        with pytest.raises(CacheError, match=f"Python's protobuf parses at most 2147483647 bytes, got {data.size}"):
            read()
    assert main(["inspect", str(tmp_path / "large")]) == 0
    assert "1 page, 2.5 GiB" in capsys.readouterr().out


def test_ten_thousand_pages():
    """Limits that only something quadratic, or a parser in Python, would miss."""
    key, value = arrays(tokens=10_000, batch=1, heads=1)
    begin = time.process_time()
    cache = PagedCache.from_dense(key, value, 1)
    built = time.process_time()
    again = PagedCache(cache.to_array())
    read = time.process_time()
    assert again._headers == cache._headers
    assert repr(again)
    described = time.process_time()
    dense = again.to_dense()
    decoded = time.process_time()
    np.testing.assert_array_equal(dense[0], key)
    assert built - begin < 15
    assert read - built < 3
    assert described - read < 3
    assert decoded - described < 10


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite(bad):
    message = PagedCache.from_dense(*arrays(), 4).to_proto()
    values = np.zeros((2, 3, 4, 5), F32)
    values[1, 2, 3, 4] = bad
    message.blocks[1].key.raw_data = values.tobytes()
    cache = PagedCache.from_proto(message)
    for call in (cache.to_dense, lambda: cache.quantize("INT8", "INT8")):
        with pytest.raises(CacheError) as error:
            call()
        place = "page at token 4, key: expected finite values in the valid rows"
        assert str(error.value) == f"{place}, got {bad} at batch 1, head 2, token 3, column 4"
    with pytest.raises(CacheError, match=f"block 1, key: expected finite .* got {bad} at batch 1, head 2"):
        cache.quantize("FLOAT", "FLOAT")
    assert cache.quantize("FLOAT", "FLOAT", pages=[0, 2])


def test_empty_cache():
    cache = PagedCache()
    assert (cache.tokens, len(cache.pages), cache.to_bytes()) == (0, 0, b"")
    assert [x.shape for x in cache.to_dense()] == [(0, 0, 0, 0)] * 2
    cache.append(K[:, :, :0], V[:, :, :0])
    assert cache.to_bytes() == b""
    assert cache.quantize("INT8", "INT8") == cache


def test_exports():
    assert onnx_ai_rt.PagedCache is PagedCache
    assert issubclass(CacheError, ValueError)


class Terminal:
    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_progress(monkeypatch, capsys):
    assert list(progress(range(3), "working")) == [0, 1, 2]
    assert capsys.readouterr().err == ""  # no terminal
    terminal = Terminal()
    clock = iter(range(100))
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    assert list(progress(range(3), "working")) == [0, 1, 2]
    assert "\rworking: 1 of 3 (33 %)" in terminal.text
    assert terminal.text.endswith("\r\x1b[K")
