"""Rewriting of models: a decoder with past and present tensors becomes one with paged caches."""

from __future__ import annotations

from onnx_ai_rt.rewrite.convert import to_paged
from onnx_ai_rt.rewrite.paged_model import CacheNames, NodeRewrite, PagedModel, read_cache_names

__all__ = ["CacheNames", "NodeRewrite", "PagedModel", "read_cache_names", "to_paged"]
