"""A paged key/value cache with numpy in and out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from onnx_ai_rt._arguments import byte_array, described, file_path, items
from onnx_ai_rt.cache.builder import append_pages
from onnx_ai_rt.cache.converter import convert_pages
from onnx_ai_rt.cache.files import write_atomically
from onnx_ai_rt.cache.headers import Bytes, PageHeader, read_headers
from onnx_ai_rt.cache.pages import (
    Page,
    PageError,
    Statistics,
    compare,
    decode_side,
    format_bytes,
    page_statistics,
)
from onnx_ai_rt.cache.progress import progress
from onnx_ai_rt.proto import PagedCacheProto
from onnx_ai_rt.reference.paged_cache import parse
from onnx_ai_rt.reference.quantize import Array, FloatArray, find_format


class Pages(Sequence[Page]):
    """The pages of a cache as it is now, made when they are asked for."""

    def __init__(self, cache: PagedCache) -> None:
        self._cache = cache

    def __len__(self) -> int:
        return len(self._cache._headers)

    @overload
    def __getitem__(self, index: int) -> Page: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Page]: ...
    def __getitem__(self, index: int | slice) -> Page | Sequence[Page]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        try:
            at = range(len(self))[index]
        except TypeError:
            raise TypeError(f"PagedCache.pages: expected an integer or a slice, got {described(index)}") from None
        except IndexError:
            raise IndexError(f"PagedCache.pages: expected an index below {len(self)}, got {described(index)}") from None
        header = self._cache._headers[at]
        return Page(at, header, self._cache.to_array()[header.begin : header.end])


class PagedCache:
    """Pages of keys and values, each stored in a format of its own, in the bytes that the operators take.

    >>> import numpy as np
    >>> k = v = np.zeros((1, 2, 100, 64), np.float32)          # [batch, kv_heads, tokens, width]
    >>> cache = PagedCache.from_dense(k, v, page_size=16)
    >>> small = cache.quantize("INT8", "INT4")
    >>> small.save("layer0.cache")
    >>> k, v = PagedCache.load("layer0.cache").to_dense()

    The operators take and give `to_array()`, a uint8 tensor.
    """

    def __init__(self, data: bytes | bytearray | memoryview | Bytes = b"", *, place: str = "PagedCache") -> None:
        """Takes serialized bytes, without copying them; none are the empty cache.

        Args:
            data: bytes of a ``PagedCacheProto``, of any size; a uint8 array has rank 1.
            place: the start of error messages, as the name of a file.

        Raises:
            CacheError: a ValueError that says in one sentence what is wrong, and where.
        """
        if not isinstance(place, str):
            raise TypeError(f"PagedCache: place: expected text, got {described(place)}")
        array = np.ascontiguousarray(byte_array(data, place))
        self._set(array, read_headers(array, place))

    def _set(self, data: Bytes, headers: list[PageHeader]) -> None:
        self._buffer = data  # its first _size bytes are the cache
        self._size = data.size
        self._owned = False  # nobody else writes behind _size
        self._headers = headers

    @classmethod
    def from_dense(
        cls,
        key: Array,
        value: Array,
        page_size: int = 64,
        key_format: str | None = None,
        value_format: str | None = None,
    ) -> PagedCache:
        """A cache of these keys and values; see `append`."""
        cache = cls()
        cache.append(key, value, page_size, key_format, value_format)
        return cache

    @classmethod
    def from_proto(cls, message: PagedCacheProto) -> PagedCache:
        """A cache with the content of a message. Raises CacheError for one that is not valid."""
        if not isinstance(message, PagedCacheProto):
            raise TypeError(f"PagedCache.from_proto: expected a PagedCacheProto, got {described(message)}")
        return cls(message.SerializeToString())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PagedCache:
        """Reads a file. Raises OSError, and CacheError (naming the file) for one that is no valid cache."""
        name = file_path(path, "PagedCache.load")
        with open(name, "rb") as file:
            return cls(file.read(), place=name)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file: at every moment its old content or the new one is there. Raises OSError."""
        write_atomically(file_path(path, "PagedCache.save"), self.to_array())

    def to_array(self) -> Bytes:
        """The serialized cache for an operator's input: a read-only uint8 view, valid also after `append`."""
        view = self._buffer[: self._size]
        view.flags.writeable = False
        return view

    def to_bytes(self) -> bytes:
        """The serialized cache, copied."""
        return self.to_array().tobytes()

    def to_proto(self) -> PagedCacheProto:
        """The message. Raises CacheError for 2 GiB and more, which Python's protobuf cannot parse."""
        return parse(self.to_array())

    @property
    def pages(self) -> Pages:
        """The pages, in the order of their tokens."""
        return Pages(self)

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self._headers[-1].start + self._headers[-1].length if self._headers else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the serialized cache."""
        return self._size

    @property
    def shapes(self) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
        """Shapes of `to_dense`: ``[batch, kv_heads, tokens, width]`` of keys and values; zeros for an empty cache."""
        if not self._headers:
            return (0, 0, 0, 0), (0, 0, 0, 0)
        (kb, kh, _, kw), (vb, vh, _, vw) = self._headers[0].key.shape, self._headers[0].value.shape
        return (kb, kh, self.tokens, kw), (vb, vh, self.tokens, vw)

    @property
    def statistics(self) -> Statistics:
        """Totals: tokens, bytes, bits per value, ratio to float."""
        parts = [page_statistics(h) for h in self._headers]
        return Statistics(
            sum(p.tokens for p in parts), sum(p.values for p in parts), self._size, sum(p.payload_bytes for p in parts)
        )

    def append(
        self,
        key: Array,
        value: Array,
        page_size: int = 64,
        key_format: str | None = None,
        value_format: str | None = None,
    ) -> None:
        """Adds pages behind the others, which stay as they are, partly filled ones included.

        Args:
            key: ``[batch, kv_heads, tokens, key width]``, float32, float16, bfloat16 or float64, finite.
            value: the same with a width of its own.
            page_size: tokens of a page; the last one has the rest.
            key_format: one of FLOAT, FLOAT16, BFLOAT16, INT8, UINT8, INT4, UINT4, INT2, UINT2; None is the type of
                `key` (FLOAT for float64). Affine formats get a scale for each page, from the range of its values.
            value_format: the same for the values.

        Raises:
            ValueError: for shapes that do not fit each other or the cache, unknown formats, NaN and infinity.
        """
        content, headers = append_pages(
            self._size, self._headers[-1] if self._headers else None, key, value, page_size, key_format, value_format
        )
        needed = self._size + content.size
        if not self._owned or needed > self._buffer.size:
            grown = np.empty(max(needed, self._buffer.size + self._buffer.size // 2), np.uint8)
            grown[: self._size] = self._buffer[: self._size]
            self._buffer, self._owned = grown, True
        self._buffer[self._size : needed] = content
        self._size = needed
        self._headers.extend(headers)

    def to_dense(self) -> tuple[FloatArray, FloatArray]:
        """Keys and values of all tokens, float32, ``[batch, kv_heads, tokens, width]`` each.

        Raises:
            CacheError: for NaN and infinity, stored or by decoding.
        """
        shapes = self.shapes
        key, value = np.empty(shapes[0], np.float32), np.empty(shapes[1], np.float32)
        for header in progress(self._headers, "decoding pages"):
            rows = slice(header.start, header.start + header.length)
            data = self._buffer[header.begin : header.end]
            key[:, :, rows] = decode_side(header, "key", data)
            value[:, :, rows] = decode_side(header, "value", data)
        return key, value

    def quantize(
        self,
        key_format: str,
        value_format: str,
        *,
        pages: Iterable[int] | None = None,
        key_scale: float | None = None,
        key_zero_point: int = 0,
        value_scale: float | None = None,
        value_zero_point: int = 0,
    ) -> PagedCache:
        """A cache with pages converted as ``ai.rt::QuantizePagedCache`` does; all other bytes are the same.

        Args:
            key_format: of the result: one of INT8, UINT8, INT4, UINT4, INT2, UINT2, or FLOAT, FLOAT16, BFLOAT16, which
                restore dense pages.
            value_format: the same for the values.
            pages: which pages, in any order; None is all of them.
            key_scale: positive and finite; None is a scale (and zero point) for each page, from its range.
            key_zero_point: a code, counts together with a scale.
            value_scale: the same for the values.
            value_zero_point: likewise.

        Raises:
            CacheError: for arguments and for values that no result can hold.
        """
        data, headers = convert_pages(
            self._buffer[: self._size],
            self._headers,
            pages,
            (key_format, key_scale, key_zero_point),
            (value_format, value_scale, value_zero_point),
        )
        cache = PagedCache()
        cache._set(data, headers)
        return cache

    def errors(self, original: PagedCache | tuple[Array, Array]) -> Iterator[PageError]:
        """For each page the differences to the original numbers.

        Args:
            original: another cache of these tokens, in pages of any size, or its keys and values as arrays.

        Raises:
            ValueError: for another shape.
        """
        key, value = original.to_dense() if isinstance(original, PagedCache) else _pair(original)
        if (key.shape, value.shape) != self.shapes:
            raise ValueError(
                f"PagedCache.errors: expected keys and values of shapes {self.shapes}, got {(key.shape, value.shape)}"
            )
        for page in progress(self.pages, "comparing pages"):
            rows = slice(page.start, page.start + page.length)
            yield compare(page.index, page.to_dense(), (key[:, :, rows], value[:, :, rows]))

    def __eq__(self, other: object) -> bool:
        """Whether the bytes are the same."""
        return isinstance(other, PagedCache) and np.array_equal(self.to_array(), other.to_array())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if not self._headers:
            return "PagedCache(empty)" if not self._size else f"PagedCache(no pages, {format_bytes(self._size)})"
        (batch, heads, tokens, key_width), value_shape = self.shapes
        counts: dict[tuple[str, str], int] = {}
        for header in self._headers:
            formats = (header.key.format_name, header.value.format_name)
            counts[formats] = counts.get(formats, 0) + 1
        pages = ", ".join(f"{n} {k}/{v}" for (k, v), n in counts.items())
        statistics = self.statistics
        return (
            f"PagedCache({tokens} tokens of {batch} x {heads} heads, widths {key_width} and {value_shape[3]}; "
            f"{len(self._headers)} page{'s' if len(self._headers) > 1 else ''}: {pages}; {format_bytes(self._size)}, "
            f"{statistics.bits_per_value:.2f} bits a value, {statistics.float_ratio:.2f} times smaller than float)"
        )


def _pair(original: object) -> list[Array]:
    """Keys and values to compare with."""
    place = "PagedCache.errors: original"
    pair = items(original, place, "a PagedCache, or keys and values as arrays")
    if len(pair) != 2:
        raise ValueError(f"{place}: expected keys and values as arrays, got {len(pair)} objects")
    for array in pair:
        is_number = isinstance(array, np.ndarray) and (array.dtype.kind in "fiub" or find_format(array.dtype))
        if not is_number:
            raise TypeError(f"{place}: expected keys and values as arrays of numbers, got {described(array)}")
    return pair
