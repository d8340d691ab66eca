"""Attention and compressed key/value caches for ONNX Runtime.

``import onnx_ai_rt`` is quick: what is listed here is loaded when it is first used.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx_ai_rt._cpu import CpuInfo as CpuInfo
    from onnx_ai_rt._cpu import choose_cpu_target as choose_cpu_target
    from onnx_ai_rt._cpu import cpu_info as cpu_info
    from onnx_ai_rt._library import get_library_path as get_library_path
    from onnx_ai_rt._ortvalue import from_ortvalue as from_ortvalue
    from onnx_ai_rt._ortvalue import to_ortvalue as to_ortvalue
    from onnx_ai_rt._register import register as register
    from onnx_ai_rt._runs import KernelRun as KernelRun
    from onnx_ai_rt._runs import kernel_runs as kernel_runs
    from onnx_ai_rt.cache import CacheError as CacheError
    from onnx_ai_rt.cache import PagedCache as PagedCache
    from onnx_ai_rt.decode import PagedKVCache as PagedKVCache
    from onnx_ai_rt.decode import ReformatPolicy as ReformatPolicy
    from onnx_ai_rt.proto import AffineLayoutProto as AffineLayoutProto
    from onnx_ai_rt.proto import EncodedValueProto as EncodedValueProto
    from onnx_ai_rt.proto import PagedCacheBlockProto as PagedCacheBlockProto
    from onnx_ai_rt.proto import PagedCacheProto as PagedCacheProto
    from onnx_ai_rt.reference.ops import reference_ops as reference_ops
    from onnx_ai_rt.rewrite import PagedModel as PagedModel
    from onnx_ai_rt.rewrite import to_paged as to_paged
    from onnx_ai_rt.schemas import register_schemas as register_schemas

    __version__: str

# Module -> public names that it provides; a name that is the module's own last part is the module itself.
_EXPORTS = {
    "_cpu": ("CpuInfo", "choose_cpu_target", "cpu_info"),
    "_library": ("get_library_path",),
    "_ortvalue": ("from_ortvalue", "to_ortvalue"),
    "_register": ("register",),
    "_runs": ("KernelRun", "kernel_runs"),
    "reference.ops": ("reference_ops",),
    "decode": ("PagedKVCache", "ReformatPolicy"),
    "rewrite": ("PagedModel", "to_paged"),
    "schemas": ("register_schemas",),
    "cache": ("CacheError", "PagedCache"),
    "proto": ("AffineLayoutProto", "EncodedValueProto", "PagedCacheBlockProto", "PagedCacheProto"),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted(_MODULE_OF)

if importlib.util.find_spec("onnxruntime") is None:
    warnings.warn(
        "onnxruntime is not installed: caches can be read and written, models cannot run; "
        "install it with: pip install onnx-ai-rt[onnxruntime]",
        stacklevel=2,
    )


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("onnx-ai-rt")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'onnx_ai_rt' has no attribute {name!r}")
    module = importlib.import_module(f"onnx_ai_rt.{_MODULE_OF[name]}")
    value = module if _MODULE_OF[name].rpartition(".")[2] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
