"""The data of a row: inputs that every contender reads, and a sample of the right answer."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from benchmarks.rows import Row
from onnx_ai_rt import PagedCache

Array = npt.NDArray[Any]

_ALIGNMENT = 4096  # of every array: no contender is lucky with its address


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of zeros whose pages are in memory."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.ones(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    array: Array = raw[start : start + size].view(dtype).reshape(shape)
    array.view(np.uint8)[...] = 0
    return array


def numpy_type(name: str) -> np.dtype[Any]:
    """float32, float16 or bfloat16 as numpy knows them."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


class Problem:
    """Inputs of one row, made when they are first asked for, from one seed."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.dtype = numpy_type(row.dtype)
        self._random = np.random.default_rng(5)
        s = row.shape
        self.query = self._normal((s.batch, s.q_heads, s.queries, s.head_size))
        self.key = self._normal((s.batch, s.kv_heads, s.keys, s.head_size))
        self.value = self._normal((s.batch, s.kv_heads, s.keys, s.head_size))

    def _normal(self, shape: tuple[int, ...]) -> Array:
        array = aligned(shape, np.float32)
        self._random.standard_normal(out=array.reshape(-1), dtype=np.float32)
        # What the type holds, in every contender's copy: answers then differ by their arithmetic alone.
        if self.dtype != np.float32:
            array[...] = array.astype(self.dtype)
        return array

    @functools.cached_property
    def typed(self) -> dict[str, Array]:
        """Q, K and V in the row's type."""
        return {n: self.cast(a, self.dtype) for n, a in (("Q", self.query), ("K", self.key), ("V", self.value))}

    @staticmethod
    def cast(array: Array, dtype: np.dtype[Any]) -> Array:
        """The array itself where it has the type."""
        if array.dtype == dtype and array.flags.c_contiguous:
            return array
        result = aligned(array.shape, dtype)
        result[...] = array
        return result

    @functools.cached_property
    def mask(self) -> Array | None:
        """Additive mask of shape (1,1,S,T) that the row asks for."""
        s = self.row.shape
        if not self.row.mask:
            return None
        mask = aligned((1, 1, s.queries, s.keys), np.float32)
        if self.row.mask == "full":
            self._random.standard_normal(out=mask.reshape(-1), dtype=np.float32)
        else:
            mask[..., ~self.visible(np.arange(s.queries))] = -np.inf
        return mask

    @property
    def offset(self) -> int:
        """Position of the first query among the keys."""
        return self.row.shape.keys - self.row.shape.queries

    def visible(self, queries: Array) -> npt.NDArray[np.bool_]:
        """Keys that these queries may see where the row is causal, of shape (len(queries),T)."""
        seen: npt.NDArray[np.bool_] = np.arange(self.row.shape.keys) <= queries[:, None] + self.offset
        return seen

    @functools.cached_property
    def pages(self) -> Array:
        """The serialized cache: all keys but the new ones, in the row's format; for `quantize`, all as FLOAT."""
        row, length = self.row, self.row.shape.keys
        page_format = row.page_format
        if row.kind == "paged":
            length -= row.new_tokens
        else:
            page_format = "FLOAT"
        cache = PagedCache.from_dense(
            self.key[:, :, :length], self.value[:, :, :length], row.page_size, page_format, page_format
        )
        stored = cache.to_array()
        result = aligned(stored.shape, np.uint8)
        result[...] = stored
        return result

    def visible_pairs(self) -> int:
        """Pairs of a query and a key that takes part, of one head of one batch entry."""
        s = self.row.shape
        if self.row.causal or self.row.mask == "causal":
            return s.queries * (self.offset + 1) + s.queries * (s.queries - 1) // 2
        return s.queries * s.keys

    @functools.cached_property
    def sample(self) -> tuple[tuple[Array, Array], Array]:
        """(heads, queries) of some rows of Y, and their values in double precision."""
        s = self.row.shape
        heads = np.unique([0, s.q_heads // 2, s.q_heads - 1])
        queries = np.unique([0, s.queries // 2, s.queries - 1])
        values = np.empty((heads.size, queries.size, s.head_size))
        for i, head in enumerate(heads):
            kv = head // (s.q_heads // s.kv_heads)
            scores = self.query[0, head, queries].astype(np.float64) @ self.key[0, kv].T.astype(np.float64)
            scores /= np.sqrt(s.head_size)
            if self.row.causal:
                scores[~self.visible(queries)] = -np.inf
            if self.mask is not None:
                scores += self.mask[0, 0, queries]
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            values[i] = weights / weights.sum(axis=1, keepdims=True) @ self.value[0, kv]
        return (heads, queries), values

    def error(self, output: Array) -> float:
        """Root of the mean squared error of Y's sampled rows, relative to that of the right values."""
        (heads, queries), expected = self.sample
        got = output[0][np.ix_(heads, queries)].astype(np.float64)
        return float(np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2)))
