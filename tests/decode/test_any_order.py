"""Appending, truncating, forking, reformatting and saving in any order keep every token's values."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from decode.pages import appended, tokens
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onnx_ai_rt import PagedKVCache
from onnx_ai_rt.reference.paged_cache import parse, validate

_DENSE = st.sampled_from(["FLOAT", "FLOAT16", "BFLOAT16"])


class AnyOrder(RuleBasedStateMachine):
    """Values that all dense formats hold exactly: whatever format a page has, it gives the same numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.caches = [PagedKVCache(1, block_size=4)]
        self.contents = [tuple(x[:, :, :0] for x in tokens(1))]
        self.count = 0

    def pick(self, which: int) -> int:
        return which % len(self.caches)

    @rule(which=st.integers(0, 9), count=st.integers(1, 9), format=_DENSE)
    def append(self, which: int, count: int, format: str) -> None:
        at = self.pick(which)
        self.count += 1
        new = tuple(np.rint(4 * x) / 4 for x in tokens(count, self.count))
        cache = self.caches[at]
        cache.append([appended(cache.tokens, *new, cache.block_size, (format, "FLOAT"))])
        self.contents[at] = tuple(np.concatenate(p, axis=2) for p in zip(self.contents[at], new, strict=True))

    @rule(which=st.integers(0, 9), share=st.floats(0, 1))
    def truncate(self, which: int, share: float) -> None:
        at = self.pick(which)
        keep = int(share * self.caches[at].tokens)
        self.caches[at].truncate(keep)
        self.contents[at] = tuple(x[:, :, :keep] for x in self.contents[at])

    @rule(which=st.integers(0, 9))
    def fork(self, which: int) -> None:
        at = self.pick(which)
        if len(self.caches) < 4:
            self.caches.append(self.caches[at].fork())
            self.contents.append(self.contents[at])

    @rule(which=st.integers(0, 9))
    def drop(self, which: int) -> None:
        if len(self.caches) > 1:
            at = self.pick(which)
            del self.caches[at], self.contents[at]

    @rule(which=st.integers(0, 9), older_than=st.integers(0, 20), key=_DENSE, value=_DENSE)
    def reformat(self, which: int, older_than: int, key: str, value: str) -> None:
        self.caches[self.pick(which)].reformat(key, value, older_than=older_than)

    @rule(which=st.integers(0, 9))
    def save_and_load(self, which: int) -> None:
        at = self.pick(which)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cache"
            self.caches[at].save(path)
            self.caches[at] = PagedKVCache.load(path)

    @invariant()
    def all_values_are_there(self) -> None:
        for cache, content in zip(self.caches, self.contents, strict=True):
            array = cache.inputs()["cache_0"]
            blocks = validate(parse(array))
            assert sum(block.length for block in blocks) == cache.tokens == content[0].shape[2]
            for i, side in enumerate(("key", "value")):
                if blocks:
                    rows = np.concatenate([getattr(block, side).decode() for block in blocks], axis=2)
                    np.testing.assert_array_equal(rows, content[i])


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
