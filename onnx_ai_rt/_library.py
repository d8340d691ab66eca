"""Where the custom-op library is, and its introspection function."""

from __future__ import annotations

import ctypes
import functools
import json
import sys
from pathlib import Path
from typing import Any

_SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
_NAME = f"libonnx_ai_rt{_SUFFIX}"


@functools.cache
def get_library_path() -> str:
    """Path of the custom-op library, for ``SessionOptions.register_custom_ops_library`` and for other languages.

    Raises:
        FileNotFoundError: the package was not built, or is incomplete.
    """
    import onnx_ai_rt

    # An editable install has two folders: the sources and the one with the built libraries.
    for folder in onnx_ai_rt.__path__:
        path = Path(folder) / _NAME
        if path.is_file():
            return str(path.resolve())
    places = ", ".join(onnx_ai_rt.__path__)
    raise FileNotFoundError(f"onnx_ai_rt: no {_NAME} in {places}; install the package with pip so that it is built")


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(get_library_path())
    library.OnnxAiRtQuery.restype = ctypes.c_int64
    library.OnnxAiRtQuery.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64]
    return library


def query(request: str) -> Any:
    """The library's answer to ``info``, ``kernel_runs``, ``reset_kernel_runs`` or ``choose_target NAME``.

    It works without onnxruntime.

    Raises:
        ValueError: the library refuses the request; the text says why.
    """
    size = 1 << 14
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = _library().OnnxAiRtQuery(request.encode(), buffer, size)
        if needed <= size:
            break
        size = needed + 1024  # the answer may grow between two calls
    answer = json.loads(buffer.value.decode())
    if isinstance(answer, dict) and "error" in answer:
        raise ValueError(answer["error"])
    return answer
