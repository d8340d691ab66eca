"""The file of a decoder's caches: a zip of numpy arrays (``numpy.load`` reads it), one of bytes for each layer."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, BinaryIO

import numpy as np

from onnx_ai_rt._arguments import integer
from onnx_ai_rt.cache.files import atomic_file
from onnx_ai_rt.decode.arguments import layer_names
from onnx_ai_rt.decode.storage import Bytes
from onnx_ai_rt.reference.paged_cache import CacheError
from onnx_ai_rt.rewrite.paged_model import CacheNames

_META = "onnx_ai_rt_kv_cache"
_VERSION = 1


def write_caches(
    path: str | os.PathLike[str], names: Sequence[CacheNames], block_size: int, arrays: Sequence[Bytes]
) -> None:
    """Writes the file beside its place and renames it. Raises OSError; nothing has changed then."""
    meta = {"version": _VERSION, "block_size": block_size, "names": [asdict(name) for name in names]}
    entries: dict[str, Any] = {_META: np.frombuffer(json.dumps(meta).encode(), np.uint8)}
    entries.update((_entry(i), array) for i, array in enumerate(arrays))
    with atomic_file(path) as file:
        np.savez(file, **entries)


def read_caches(path: str) -> tuple[tuple[CacheNames, ...], int, list[Bytes]]:
    """Names, block size and bytes of each layer.

    Raises:
        OSError: as for any file.
        CacheError: for a file that is something else.
    """
    with open(path, "rb") as stream:
        try:
            return _read(stream, path)
        except CacheError:
            raise
        # The layers below raise what they like for damaged bytes: zipfile NotImplementedError and RuntimeError, its
        # decompressors OSError and errors of their own, numpy ValueError and, for a damaged shape, MemoryError.
        except Exception as error:
            # One without a number is a decompressor's, EINVAL a seek to nowhere; others are the disk's.
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
                raise OSError(error.errno, error.strerror, path) from error
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CacheError(
                f"{path}: expected a file that PagedKVCache.save wrote, got something else ({reason})"
            ) from error


def _read(stream: BinaryIO, path: str) -> tuple[tuple[CacheNames, ...], int, list[Bytes]]:
    file = np.load(stream, allow_pickle=False)
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise CacheError(f"{path}: expected a file that PagedKVCache.save wrote, got one array")
    with file:
        meta = json.loads(file[_META].tobytes())
        if meta["version"] != _VERSION:
            raise CacheError(f"{path}: expected version {_VERSION} of a file of PagedKVCache, got {meta['version']}")
        names = layer_names([CacheNames(**name) for name in meta["names"]])
        if not all(isinstance(text, str) for name in names for text in asdict(name).values()):
            raise CacheError(f"{path}: expected texts as names of inputs and outputs, got {meta['names']}")
        block_size = integer(meta["block_size"], "block_size", 1)
        arrays = [file[_entry(i)] for i in range(len(names))]
    for i, array in enumerate(arrays):
        if array.dtype != np.uint8 or array.ndim != 1:
            raise CacheError(f"{path}, layer {i}: expected bytes, got {array.dtype} of shape {list(array.shape)}")
    return names, block_size, arrays


def _entry(layer: int) -> str:
    return f"layer_{layer:04}"
