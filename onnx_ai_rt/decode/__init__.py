"""Caches that grow while a model decodes token by token."""

from __future__ import annotations

from onnx_ai_rt.decode.kv_cache import KVCacheStatistics, PagedKVCache
from onnx_ai_rt.decode.policy import ReformatPolicy

__all__ = ["KVCacheStatistics", "PagedKVCache", "ReformatPolicy"]
