"""The file of a decoder's caches: a zip of numpy arrays (``numpy.load`` reads it), one of bytes for each layer."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from onnx_ai_rt.cache.files import atomic_file
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


def read_caches(path: str | os.PathLike[str]) -> tuple[list[CacheNames], int, list[Bytes]]:
    """Names, block size and bytes of each layer.

    Raises:
        OSError: as for any file.
        CacheError: for a file that is something else.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            meta = json.loads(file[_META].tobytes())
            if meta["version"] != _VERSION:
                raise CacheError(
                    f"{os.fspath(path)}: expected version {_VERSION} of a file of PagedKVCache, got {meta['version']}"
                )
            names = [CacheNames(**name) for name in meta["names"]]
            arrays = [file[_entry(i)] for i in range(len(names))]
            block_size = int(meta["block_size"])
    except CacheError:
        raise
    except (KeyError, ValueError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise CacheError(f"{os.fspath(path)}: expected a file that PagedKVCache.save wrote ({error})") from error
    for array in arrays:
        if array.dtype != np.uint8 or array.ndim != 1:
            raise CacheError(f"{os.fspath(path)}: expected bytes, got {array.dtype} of shape {list(array.shape)}")
    return names, block_size, arrays


def _entry(layer: int) -> str:
    return f"layer_{layer:04}"
