"""Registration of the operators with ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx_ai_rt._library import get_library_path
from onnx_ai_rt._runtime import onnxruntime

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

_OVERRIDE_ENTRY = "onnx_ai_rt.override_onnx_attention"
_REGISTERED_ENTRY = "onnx_ai_rt.registered"


def register(session_options: SessionOptions, *, override_onnx_attention: bool = True) -> SessionOptions:
    """Makes the operators available to the sessions that are created with these options.

    Args:
        session_options: an ``onnxruntime.SessionOptions``; changed in place. A second registration changes nothing.
        override_onnx_attention: whether nodes ``Attention`` of ONNX's own domain run on this library instead of
            onnxruntime's kernel. Nodes of domain ``ai.rt`` always run here.

    Returns:
        ``session_options``, for chaining.

    Raises:
        ImportError: no onnxruntime is installed; the text says how to get it.
        TypeError: ``session_options`` is something else.
    """
    ort = onnxruntime()
    if not isinstance(session_options, ort.SessionOptions):
        raise TypeError(f"register: session_options must be onnxruntime.SessionOptions, got {type(session_options)}")
    if _has_entry(session_options, _REGISTERED_ENTRY):
        return session_options
    if not override_onnx_attention:
        session_options.add_session_config_entry(_OVERRIDE_ENTRY, "0")
    session_options.register_custom_ops_library(get_library_path())
    return session_options


def _has_entry(session_options: SessionOptions, key: str) -> bool:
    try:
        session_options.get_session_config_entry(key)
    except RuntimeError:  # how onnxruntime says that there is none
        return False
    return True
