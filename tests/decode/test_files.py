"""Files of caches that are damaged, foreign or cannot be written: one sentence with the file's name."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decode.pages import appended, tokens

from onnx_ai_rt import CacheError, PagedCache, PagedKVCache


def kv_cache() -> PagedKVCache:
    cache = PagedKVCache(2)
    cache.append([appended(0, *tokens(3))] * 2)
    return cache


def one_sentence(path: Path) -> str:
    """What loading the file as a cache of all layers says."""
    with pytest.raises(CacheError) as error:
        PagedKVCache.load(path)
    text = str(error.value)
    assert text.startswith(f"{path}")
    assert "\n" not in text
    assert "expected" in text
    assert "got" in text
    return text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "all.kv"


def test_every_byte_damaged(path: Path) -> None:
    """Either an error that names the file, or a cache: a byte that nothing depends on."""
    kv_cache().save(path)
    whole = path.read_bytes()
    for i in range(len(whole)):
        for new in (whole[i] ^ 0xFF, whole[i] ^ 1):
            path.write_bytes(whole[:i] + bytes([new]) + whole[i + 1 :])
            text = ""
            try:
                assert PagedKVCache.load(path).tokens in (0, 3)
            except CacheError as error:
                text = str(error)
            assert text == "" or text.startswith(str(path))
            assert "\n" not in text


def test_every_truncation(path: Path) -> None:
    kv_cache().save(path)
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        one_sentence(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, 99], ids=str)
def test_a_compression_that_is_damaged_or_unknown(path: Path, method: int) -> None:
    kv_cache().save(path)
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = data.find(signature)
        while at >= 0:
            data[at + offset : at + offset + 2] = method.to_bytes(2, "little")
            at = data.find(signature, at + 1)
    path.write_bytes(data)
    one_sentence(path)


def test_encrypted_entries(path: Path) -> None:
    kv_cache().save(path)
    data = bytearray(path.read_bytes())
    at = data.find(b"PK\x01\x02")
    while at >= 0:
        data[at + 8] |= 1
        at = data.find(b"PK\x01\x02", at + 1)
    path.write_bytes(data)
    assert "encrypted" in one_sentence(path)


def saved(path: Path, **changes: Any) -> None:
    """The file with other metadata; None removes an entry."""
    kv_cache().save(path)
    with np.load(path) as file:
        entries = dict(file)
    meta = json.loads(entries["onnx_ai_rt_kv_cache"].tobytes())
    meta = {name: value for name, value in {**meta, **changes}.items() if value is not None}
    entries["onnx_ai_rt_kv_cache"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    with path.open("wb") as stream:
        np.savez(stream, **entries)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": None},
        {"block_size": 0},
        {"block_size": -3},
        {"block_size": 1.5},
        {"block_size": "4"},
        {"block_size": None},
        {"names": []},
        {"names": None},
        {"names": 3},
        {"names": ["a", "b"]},
        {"names": [{"past": None}, {"past": "x"}]},
        {"names": [{"other": "x"}]},
        {"names": [{"past": f"cache_{i}"} for i in range(3)]},
    ],
    ids=str,
)
def test_metadata(path: Path, changes: dict[str, Any]) -> None:
    saved(path, **changes)
    one_sentence(path)


def test_foreign_files(path: Path) -> None:
    with path.open("wb") as stream:
        np.save(stream, np.zeros(3))
    assert one_sentence(path).endswith("expected a file that PagedKVCache.save wrote, got one array")
    with path.open("wb") as stream:
        np.save(stream, np.array([None], object), allow_pickle=True)
    one_sentence(path)
    for content in (b"", b"text\n", b"\x93NUMPY", b"PK", b"PK\x05\x06" + bytes(18), appended(0, *tokens(2)).tobytes()):
        path.write_bytes(content)
        one_sentence(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("onnx_ai_rt_kv_cache", b"{}")
    one_sentence(path)


@pytest.mark.parametrize("kind", [PagedCache, PagedKVCache])
def test_what_is_no_file(kind: type, tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        kind.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such cache"):
        kind.load(tmp_path / "no such cache")


@pytest.mark.parametrize("cache", [kv_cache().layer(0), kv_cache()], ids=["PagedCache", "PagedKVCache"])
def test_the_asked_name_is_the_one_that_is_named(cache: Any, tmp_path: Path) -> None:
    for path, error in (
        (tmp_path / "none" / "x", FileNotFoundError),
        (tmp_path, IsADirectoryError),
        (Path("/"), IsADirectoryError),
        (tmp_path / ("x" * 300), OSError),
        (Path("/dev/full"), OSError),
    ):
        with pytest.raises(error) as caught:
            cache.save(path)
        assert caught.value.filename == str(path)
        assert ".tmp" not in str(caught.value)
    with pytest.raises(IsADirectoryError):
        cache.save("")
    assert list(tmp_path.iterdir()) == []
    cache.save(tmp_path / ("x" * 255))
    assert [len(p.name) for p in tmp_path.iterdir()] == [255]


def test_devices_are_written_and_not_replaced(tmp_path: Path) -> None:
    """A file in the place of /dev/null would be a surprise to everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        cache = kv_cache().layer(0)
        cache.save(pipe)
        assert os.read(reader, 1 << 16) == cache.to_bytes()
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
