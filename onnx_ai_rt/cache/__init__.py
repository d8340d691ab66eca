"""Paged key/value caches with numpy in and out."""

from onnx_ai_rt.cache.paged_cache import PagedCache
from onnx_ai_rt.cache.pages import Page, PageError, Statistics
from onnx_ai_rt.reference.paged_cache import CacheError

__all__ = ["CacheError", "Page", "PageError", "PagedCache", "Statistics"]
