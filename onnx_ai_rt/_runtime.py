"""The one import of onnxruntime, which is optional."""

from __future__ import annotations

import importlib
from types import ModuleType

HOW_TO_INSTALL = "install it with: pip install onnx-ai-rt[onnxruntime]"


def onnxruntime() -> ModuleType:
    """The installed onnxruntime, of whichever distribution (onnxruntime, onnxruntime-gpu, ...).

    Raises:
        ImportError: there is none; the text says how to get it.
    """
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ImportError(f"onnx_ai_rt needs onnxruntime 1.21 or later ({error}); {HOW_TO_INSTALL}") from error


def runtime_version() -> tuple[int, int]:
    """Major and minor version of the installed onnxruntime."""
    major, minor = onnxruntime().__version__.split(".")[:2]
    return int(major), int(minor)
