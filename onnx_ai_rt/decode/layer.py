"""The cache of one layer in a buffer of its own, and which bytes of it are which page."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from onnx_ai_rt._arguments import byte_array
from onnx_ai_rt._core import merge_pages
from onnx_ai_rt.cache.headers import PageHeader, read_headers
from onnx_ai_rt.decode.policy import ReformatPolicy, reformat_page
from onnx_ai_rt.decode.spans import Span, find_spans, parse_one
from onnx_ai_rt.decode.storage import Bytes, Storage
from onnx_ai_rt.reference.paged_cache import CacheError


class Shape(NamedTuple):
    """What all pages of a cache have in common."""

    batch: int
    kv_heads: int
    key_width: int
    value_width: int

    @classmethod
    def of(cls, page: PageHeader) -> Shape:
        batch, heads, _, width = page.key.shape
        return cls(batch, heads, width, page.value.shape[3])


class NewPages(NamedTuple):
    """Serialized pages that `LayerBuffer.check` has found to follow those of its cache."""

    data: Bytes
    spans: list[Span]
    shape: Shape | None
    """None where there are no pages."""

    @property
    def tokens(self) -> int:
        return sum(span.length for span in self.spans)


class LayerBuffer:
    """Serialized pages that grow at the end."""

    def __init__(self, block_size: int, data: Bytes | None = None, place: str = "PagedKVCache") -> None:
        """An empty cache, or one of serialized bytes (copied).

        Raises:
            CacheError: for bytes that are no valid cache, or hold more than pages.
        """
        self._block_size = block_size
        # One-token pages first become pages of this size: then few pages are open, and a token is moved twice.
        self._small = math.isqrt(block_size)
        self._storage = Storage(data)
        self._spans: list[Span] = []
        self._shape: Shape | None = None
        if data is not None:
            headers = read_headers(np.ascontiguousarray(data), place)
            self._spans = [Span(h.begin, h.end, h.start, h.length) for h in headers]
            self._shape = Shape.of(headers[0]) if headers else None
            if sum(span.end - span.begin for span in self._spans) != data.size:
                raise CacheError(f"{place}: expected pages alone, got other fields too")
        self._reformatted = 0  # leading pages that a policy has been applied to
        self._set_tail()

    def _set_tail(self) -> None:
        """Pages from index `_tail` on may still be merged to full ones, those from `_fresh` on to small ones before."""
        self._tail = self._fresh = len(self._spans)
        while self._tail > self._reformatted and self._spans[self._tail - 1].length < self._block_size:
            self._tail -= 1
        while self._fresh > self._tail and self._spans[self._fresh - 1].length < self._small:
            self._fresh -= 1

    @property
    def tokens(self) -> int:
        return self._spans[-1].start + self._spans[-1].length if self._spans else 0

    @property
    def nbytes(self) -> int:
        return self._storage.size

    @property
    def allocated(self) -> int:
        return self._storage.allocated

    @property
    def pages(self) -> int:
        return len(self._spans)

    def view(self) -> Bytes:
        return self._storage.view()

    def fork(self) -> LayerBuffer:
        other = LayerBuffer(self._block_size)
        other._storage = self._storage.fork()
        other._spans = list(self._spans)
        other._shape = self._shape
        other._reformatted, other._tail, other._fresh = self._reformatted, self._tail, self._fresh
        return other

    def check(self, data: Bytes, place: str) -> NewPages:
        """What `append` takes, of new bytes.

        Raises:
            TypeError: for something else than bytes.
            CacheError: for bytes that are no valid pages, or do not fit behind those that are here.
        """
        data = byte_array(data, place)
        spans = find_spans(data.tobytes(), place)
        if not spans:
            return NewPages(data, spans, None)
        if spans[0].start != self.tokens:
            raise CacheError(f"{place}: expected pages from token {self.tokens} on, got token {spans[0].start}")
        shape = Shape.of(read_headers(np.ascontiguousarray(data), place, is_run=True)[0])
        if self._spans and self._shape is not None:
            for name, expected, got in zip(Shape._fields, self._shape, shape, strict=True):
                if got != expected:
                    raise CacheError(f"{place}: expected {name} {expected} as in the pages before, got {got}")
        return NewPages(data, spans, shape)

    def append(self, new: NewPages) -> None:
        """Puts new pages behind the others and merges small ones at the end once they hold a full page.

        Args:
            new: what `check` gave for them.
        """
        if not new.spans:
            return
        size = self._storage.size
        self._storage.replace(size, size, new.data)
        self._spans += [span.moved(size) for span in new.spans]
        self._shape = new.shape
        if self._holds(self._tail, self._block_size):
            self._tail = self._fresh = self._merge_from(self._tail, self._block_size)
        elif self._holds(self._fresh, self._small):
            self._fresh = self._merge_from(self._fresh, self._small)

    def _holds(self, first: int, tokens: int) -> bool:
        """Whether there are pages to merge from this index on, and enough for a page of so many tokens."""
        return len(self._spans) - first > 1 and self.tokens - self._spans[first].start >= tokens

    def _merge_from(self, first: int, limit: int) -> int:
        """Merges the pages from an index on; returns that of the first which may still grow."""
        begin, size = self._spans[first].begin, self._storage.size
        array = self._storage.writable(size)
        before = array[begin:size].copy()
        try:
            end = merge_pages(array, begin, size, limit)
        except BaseException:
            array[begin:size] = before
            raise
        self._storage.shrink(end)
        merged = find_spans(array[begin:end].tobytes(), "merged pages")
        self._spans[first:] = [span.moved(begin) for span in merged]
        # What is before the last page is as full as it will be.
        return len(self._spans) - (self._spans[-1].length < limit)

    def truncate(self, tokens: int) -> None:
        """Keeps the first `tokens` tokens: whole pages go, and a page that has both gets a shorter length."""
        if tokens >= self.tokens:
            return
        keep = next(i for i, span in enumerate(self._spans) if span.start + span.length > tokens)
        span = self._spans[keep]
        cut = b""
        if span.start < tokens:
            message = parse_one(self.view()[span.begin : span.end].tobytes(), f"page at token {span.start}")
            message.blocks[0].length = tokens - span.start
            cut = message.SerializeToString()
        self._storage.shrink(span.begin)
        del self._spans[keep:]
        if cut:
            self._storage.replace(span.begin, span.begin, np.frombuffer(cut, np.uint8))
            self._spans.append(Span(span.begin, span.begin + len(cut), span.start, tokens - span.start))
        self._reformatted = min(self._reformatted, keep)
        self._set_tail()

    def convert_old(self, policy: ReformatPolicy) -> tuple[int, list[Bytes]]:
        """What `replace_old` takes: the pages that have become old in their new formats, once there are enough."""
        border = self.tokens - policy.older_than
        end = self._reformatted
        while end < self._tail and self._spans[end].start + self._spans[end].length <= border:
            end += 1
        if end > self._reformatted:
            first, last = self._spans[self._reformatted], self._spans[end - 1]
            if last.start + last.length - first.start >= policy.every:
                return end, self._converted(self._reformatted, end, policy.key_format, policy.value_format)
        return self._reformatted, []

    def replace_old(self, end: int, pages: list[Bytes]) -> None:
        """Puts what `convert_old` gave in the place of the pages that it was made from."""
        if pages:
            self._replace(self._reformatted, end, pages)
            self._reformatted = end

    def old_pages(self, older_than: int) -> int:
        """How many leading pages end more than `older_than` tokens back, or just there."""
        border = self.tokens - older_than
        return sum(span.start + span.length <= border for span in self._spans)

    def convert_first(self, end: int, key_format: str, value_format: str) -> list[Bytes]:
        """What `replace_first` takes: the pages before index `end` in other formats."""
        return self._converted(0, end, key_format, value_format)

    def replace_first(self, end: int, pages: list[Bytes]) -> None:
        """Puts what `convert_first` gave in the place of the pages that it was made from."""
        if pages:
            self._replace(0, end, pages)

    def _converted(self, first: int, end: int, key_format: str, value_format: str) -> list[Bytes]:
        array = self._storage.view()
        return [
            reformat_page(array[span.begin : span.end], span, key_format, value_format)
            for span in self._spans[first:end]
        ]

    def _replace(self, first: int, end: int, pages: list[Bytes]) -> None:
        """Puts others with the same tokens in the place of the pages of index `first` to `end` - 1."""
        chosen = self._spans[first:end]
        begin, behind = chosen[0].begin, chosen[-1].end
        ends = list(accumulate((page.size for page in pages), initial=begin))
        self._storage.replace(begin, behind, np.concatenate(pages))
        moved = ends[-1] - behind
        self._spans[first:end] = [
            Span(at, to, span.start, span.length) for (at, to), span in zip(pairwise(ends), chosen, strict=True)
        ]
        self._spans[end:] = [span.moved(moved) for span in self._spans[end:]]
