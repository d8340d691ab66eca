"""The caches of a decode loop: growth, merging, truncation, forks, files, formats of old pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from decode.pages import BATCH, HEADS, appended, tokens

import onnx_ai_rt
from onnx_ai_rt import CacheError, PagedCache, PagedKVCache, ReformatPolicy
from onnx_ai_rt._core import merge_pages
from onnx_ai_rt.decode import layer as layer_module
from onnx_ai_rt.proto import PagedCacheProto
from onnx_ai_rt.rewrite import CacheNames

LAYERS = 2


def new_cache(block_size: int = 4, policy: ReformatPolicy | None = None, layers: int = LAYERS) -> PagedKVCache:
    return PagedKVCache(layers, block_size=block_size, policy=policy)


def grow(
    cache: PagedKVCache, steps: list[int], seed: int = 0, formats: tuple[str, str] = ("FLOAT", "FLOAT")
) -> tuple[np.ndarray, np.ndarray]:
    """Appends steps of so many tokens to all layers; returns their keys and values."""
    key, value = tokens(sum(steps), seed)
    at = 0
    for count in steps:
        part = (slice(None), slice(None), slice(at, at + count))
        new = appended(cache.tokens, key[part], value[part], cache.block_size, formats)
        cache.append([new] * len(cache.names))
        at += count
    return key, value


def lengths(cache: PagedKVCache, layer: int = 0) -> list[int]:
    return [page.length for page in cache.layer(layer).pages]


def check_content(cache: PagedKVCache, key: np.ndarray, value: np.ndarray) -> None:
    for i in range(len(cache.names)):
        got = cache.layer(i).to_dense()
        np.testing.assert_array_equal(got[0], key)
        np.testing.assert_array_equal(got[1], value)


def joined(*parts: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple(np.concatenate(sides, axis=2) for sides in zip(*parts, strict=True))


def test_decoding_makes_full_pages() -> None:
    cache = new_cache()
    key, value = grow(cache, [6, *[1] * 13])
    assert lengths(cache) == [4] * 4 + [2, 1]
    assert lengths(cache, 1) == lengths(cache)
    assert len(cache) == cache.tokens == 19
    check_content(cache, key, value)


@pytest.mark.parametrize(("steps", "expected"), [
    ([3, 1], [4]),
    ([3, 2], [3, 2]),  # pages are merged, not split
    ([3, 2, 1, 1], [3, 4]),
    ([9], [4, 4, 1]),
    ([9, 3], [4, 4, 4]),
    ([1] * 3, [2, 1]),
    ([4, 1, 1, 1, 4], [4, 3, 4]),
])  # fmt: skip
def test_merging(steps: list[int], expected: list[int]) -> None:
    cache = new_cache()
    content = grow(cache, steps)
    assert lengths(cache) == expected
    check_content(cache, *content)


@pytest.mark.parametrize("block_size", [1, 2, 9, 16])
def test_each_token_is_moved_twice(block_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the cache is; and few pages are open at any time."""
    moved = []

    def counting(buffer: np.ndarray, begin: int, end: int, limit: int) -> int:
        moved.append(end - begin)
        return merge_pages(buffer, begin, end, limit)

    monkeypatch.setattr(layer_module, "merge_pages", counting)
    cache = new_cache(block_size, layers=1)
    most_open = 0
    for i in range(18 * 16):
        new = appended(cache.tokens, *tokens(1, i))
        cache.append([new])
        most_open = max(most_open, sum(length < block_size for length in lengths(cache)))
    assert lengths(cache) == [block_size] * (18 * 16 // block_size)
    assert sum(moved) <= 2 * 18 * 16 * new.size
    assert most_open <= 2 * block_size**0.5


def test_pages_that_differ_are_not_merged() -> None:
    cache = new_cache()
    grow(cache, [1, 1])
    grow(cache, [1, 1], formats=("INT8", "FLOAT"))
    grow(cache, [1], formats=("INT8", "FLOAT16"))
    assert lengths(cache) == [2, 2, 1]
    kinds = [(page.key.format_name, page.value.format_name) for page in cache.layer(0).pages]
    assert kinds == [("FLOAT", "FLOAT"), ("INT8", "FLOAT"), ("INT8", "FLOAT16")]


def test_inputs_are_views() -> None:
    cache = new_cache()
    assert {name: array.size for name, array in cache.inputs().items()} == {"cache_0": 0, "cache_1": 0}
    grow(cache, [5])
    first, second = cache.inputs()["cache_0"], cache.inputs()["cache_0"]
    assert np.shares_memory(first, second)
    assert not first.flags.writeable
    assert first.dtype == np.uint8
    kept = first.copy()
    grow(cache, [1] * 100)  # beyond what was allocated
    np.testing.assert_array_equal(first[: kept.size // 2], kept[: kept.size // 2])


def test_growth_is_amortised() -> None:
    cache = new_cache(block_size=8)
    addresses = set()
    for i in range(600):
        grow(cache, [1], seed=i)
        addresses.add(cache.inputs()["cache_0"].ctypes.data)
    assert len(addresses) < 20
    assert cache.statistics.allocated < 2 * cache.nbytes + 2 * LAYERS * 4096


@pytest.mark.parametrize("keep", range(13))
def test_truncate(keep: int) -> None:
    cache = new_cache()
    key, value = grow(cache, [6, *[1] * 6])
    cache.truncate(keep)
    assert cache.tokens == keep
    if keep:
        check_content(cache, key[:, :, :keep], value[:, :, :keep])
    more = grow(cache, [1] * 9, seed=1)
    check_content(cache, *joined((key[:, :, :keep], value[:, :, :keep]), more))
    assert max(lengths(cache)) == 4


def test_truncate_keeps_the_bytes_of_a_cut_page() -> None:
    cache = new_cache(block_size=300)
    grow(cache, [299])
    cache.truncate(100)
    (page,) = cache.layer(0).pages
    assert (page.length, page.capacity) == (100, 299)
    cache.truncate(1000)
    assert cache.tokens == 100
    cache.truncate(0)
    assert (cache.nbytes, cache.tokens) == (0, 0)
    with pytest.raises(ValueError, match="truncate: tokens: expected 0 or more, got -1"):
        cache.truncate(-1)


def test_fork() -> None:
    cache = new_cache()
    key, value = grow(cache, [7])
    left, right = cache.fork(), cache.fork()
    assert np.shares_memory(left.inputs()["cache_0"], cache.inputs()["cache_0"])
    for branch, seed in ((left, 1), (right, 2), (cache, 3)):
        more = grow(branch, [1] * 6, seed=seed)
        check_content(branch, *joined((key, value), more))
    assert not np.shares_memory(left.inputs()["cache_0"], right.inputs()["cache_0"])
    left.truncate(3)
    assert (left.tokens, right.tokens, cache.tokens) == (3, 13, 13)


def test_the_last_one_of_a_fork_does_not_copy() -> None:
    cache = new_cache(layers=1)
    grow(cache, [9])
    fork = cache.fork()
    before = cache.inputs()["cache_0"].ctypes.data
    del fork
    grow(cache, [1])
    assert cache.inputs()["cache_0"].ctypes.data == before


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "cache.kv"
    cache = PagedKVCache([CacheNames("k", "new_k"), CacheNames("l", "new_l")], block_size=4)
    key, value = grow(cache, [6, 1])
    cache.save(path)
    cache.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["cache.kv"]
    loaded = PagedKVCache.load(path)
    assert (loaded.names, loaded.block_size, loaded.tokens) == (cache.names, 4, 7)
    for name, array in cache.inputs().items():
        np.testing.assert_array_equal(loaded.inputs()[name], array)
    more = grow(loaded, [1], seed=5)
    assert lengths(loaded) == [4, 4]
    check_content(loaded, *joined((key, value), more))
    empty = new_cache()
    empty.save(path)
    assert PagedKVCache.load(path).tokens == 0


def test_load_of_other_files(tmp_path: Path) -> None:
    path = tmp_path / "cache.kv"
    with pytest.raises(FileNotFoundError):
        PagedKVCache.load(path)
    for content in (b"", b"text", b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(CacheError, match=r"cache.kv: expected a file that PagedKVCache.save wrote"):
            PagedKVCache.load(path)
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(3))
    with pytest.raises(CacheError, match=r"cache.kv: expected a file that PagedKVCache.save wrote"):
        PagedKVCache.load(path)
    cache = new_cache()
    grow(cache, [5])
    cache.save(path)
    with np.load(path) as file:
        entries = dict(file)
    entries["layer_0001"] = entries["layer_0001"][:-1]
    with path.open("wb") as file:
        np.savez(file, **entries)
    with pytest.raises(CacheError, match=r"cache.kv, layer 1"):
        PagedKVCache.load(path)
    entries["layer_0001"] = entries["layer_0001"][:0]
    with path.open("wb") as file:
        np.savez(file, **entries)
    with pytest.raises(CacheError, match=r"expected as many tokens in every layer, got \[5, 0\]"):
        PagedKVCache.load(path)


def test_save_keeps_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.kv"
    cache = new_cache()
    grow(cache, [5])
    cache.save(path)
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="disk full"):
        cache.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["cache.kv"]


def test_policy() -> None:
    """Old pages become small, new ones stay; each value is within half a step of its page's scale."""
    cache = new_cache(
        block_size=4, policy=ReformatPolicy(older_than=10, key_format="INT8", value_format="UINT4", every=8)
    )
    key, value = grow(cache, [5, *[1] * 60])
    for i in range(LAYERS):
        pages = cache.layer(i).pages
        old = [page for page in pages if page.key.format_name == "INT8"]
        assert {page.value.format_name for page in old} == {"UINT4"}
        assert 65 - 10 - 8 - 4 <= old[-1].start + old[-1].length <= 65 - 10
        for page in pages:
            rows = slice(page.start, page.start + page.length)
            got = page.to_dense()
            if page in old:
                assert page.length == 4
            if page.key.format_name == "FLOAT":
                np.testing.assert_array_equal(got[0], key[:, :, rows])
                np.testing.assert_array_equal(got[1], value[:, :, rows])
            else:
                assert np.abs(got[0] - key[:, :, rows]).max() <= page.key.scale / 2 * 1.001
                assert np.abs(got[1] - value[:, :, rows]).max() <= page.value.scale / 2 * 1.001
    assert lengths(cache)[:3] == [4, 4, 4]


def test_policy_equals_the_operator() -> None:
    """Pages by the policy are those that QuantizePagedCache makes, with a scale for each page."""
    cache = new_cache(block_size=4)
    grow(cache, [16])
    expected = cache.layer(0).quantize("INT4", "FLOAT16", pages=range(2))
    cache.reformat("INT4", "FLOAT16", older_than=8)
    assert cache.layer(0) == expected
    cache.reformat("INT4", "FLOAT16", older_than=8)
    assert cache.layer(0) == expected
    cache.reformat("FLOAT", "FLOAT")
    assert {page.key.format_name for page in cache.layer(1).pages} == {"FLOAT"}


def test_policy_after_truncation_and_more() -> None:
    policy = ReformatPolicy(older_than=4, key_format="INT8", value_format="INT8", every=4)
    cache = new_cache(block_size=4, policy=policy)
    grow(cache, [20])
    cache.truncate(6)
    grow(cache, [1] * 20)
    assert cache.tokens == 26
    formats = [page.key.format_name for page in cache.layer(0).pages]
    assert formats == sorted(formats, reverse=True)  # INT8 first
    assert sum(page.length for page in cache.layer(0).pages if page.key.format_name == "INT8") >= 26 - 4 - 4 - 4


def test_policy_with_a_fork() -> None:
    cache = new_cache(block_size=4)
    key, value = grow(cache, [32])
    fork = cache.fork()
    fork.reformat("INT8", "INT8")
    check_content(cache, key, value)
    assert fork.nbytes < cache.nbytes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8, "INT3", "INT8"), "key_format: expected one of FLOAT, .* got 'INT3'"),
        ((8, "INT8", ""), "value_format: expected one of"),
        ((-1, "INT8", "INT8"), "older_than: expected 0 or more, got -1"),
        ((0, "INT8", "INT8", 0), "every: expected 1 or more, got 0"),
    ],
)
def test_wrong_policies(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReformatPolicy(*arguments)


def test_values_that_a_format_cannot_hold() -> None:
    cache = new_cache()
    key, value = (np.full_like(x, 1e30) for x in tokens(4))
    cache.append([appended(0, key, value)] * 2)
    before = cache.layer(0)
    with pytest.raises(CacheError, match=r"^page at token 0, key: expected finite values in the valid rows"):
        cache.reformat("FLOAT16", "FLOAT")
    assert cache.layer(0) == before


def test_wrong_appends() -> None:
    cache = new_cache()
    grow(cache, [3])
    good = appended(3, *tokens(1))
    before = [cache.layer(i) for i in range(LAYERS)]
    for new, message in (
        ([good], "expected the new pages of 2 layers, got 1"),
        ([good, appended(2, *tokens(1))], "appended_1: expected pages from token 3 on, got token 2"),
        ([good, appended(3, *tokens(2))], r"expected as many new tokens in every layer, got \[1, 2\]"),
        ([good, good[:0]], r"expected as many new tokens in every layer, got \[0, 1\]"),
        ([good, good[:-1]], "appended_1, block 0: expected serialized pages, got other bytes"),
        ([good, np.frombuffer(b"\x12\x01x", np.uint8)], "appended_1: expected pages alone, got field 2"),
        ([good, np.concatenate([good, good])], "expected consecutive pages, got one of 1 tokens at token 3"),
    ):
        with pytest.raises(ValueError, match=message):
            cache.append(new)
        assert [cache.layer(i) for i in range(LAYERS)] == before
    cache.append({"appended_1": good, "appended_0": good, "logits": np.zeros(3)})
    assert cache.tokens == 4


def test_replace() -> None:
    """Caches that the friendly layer converted, and the appends behind them."""
    cache = new_cache()
    key, value = grow(cache, [9])
    smaller = [cache.layer(0).quantize("INT8", "FLOAT"), cache.layer(1).quantize("FLOAT", "FLOAT16").to_array()]
    cache.replace(smaller)
    assert [cache.layer(i) for i in range(LAYERS)] == [smaller[0], PagedCache(smaller[1])]
    grow(cache, [1] * 4)
    assert lengths(cache) == [4, 4, 1, 4]
    np.testing.assert_array_equal(cache.layer(1).to_dense()[0][:, :, :9], key)
    np.testing.assert_array_equal(cache.layer(0).to_dense()[1][:, :, :9], value)
    for caches, message in (
        ([smaller[0]], "expected 2 caches, got 1"),
        ([smaller[0], smaller[1][:-1]], "PagedKVCache, layer 1"),
        ([smaller[0], PagedCache()], r"expected as many tokens in every layer, got \[9, 0\]"),
        (
            [smaller[0], np.concatenate([smaller[1], np.frombuffer(b"\x12\x01n", np.uint8)])],
            "layer 1: expected pages alone, got other fields too",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            cache.replace(caches)
        assert cache.tokens == 13


def test_names_from_a_model() -> None:
    from rewrite.decoders import decoder

    paged = onnx_ai_rt.to_paged(decoder())
    for model in (paged, paged.model):
        cache = PagedKVCache.for_model(model, block_size=8)
        assert cache.names == (CacheNames("cache_0", "appended_0"), CacheNames("cache_1", "appended_1"))
        assert cache.block_size == 8
    with pytest.raises(ValueError, match=r"expected a model made by onnx_ai_rt.to_paged"):
        PagedKVCache.for_model(onnx.ModelProto())
    with pytest.raises(ValueError, match="block_size: expected 1 or more, got 0"):
        PagedKVCache(1, block_size=0)


def test_statistics_and_text() -> None:
    cache = new_cache()
    assert repr(cache) == "PagedKVCache(2 layers, empty)"
    grow(cache, [9])
    cache.reformat("INT8", "INT4", older_than=3)
    statistics = cache.statistics
    assert (statistics.tokens, statistics.layers, statistics.pages) == (9, LAYERS, 6)
    assert statistics.formats == {("INT8", "INT4"): 2, ("FLOAT", "FLOAT"): 4}
    assert statistics.nbytes == cache.nbytes <= statistics.allocated
    assert statistics.values == LAYERS * 9 * BATCH * HEADS * 8
    assert repr(cache).startswith("PagedKVCache(2 layers, 9 tokens; 6 pages: 2 INT8/INT4, 4 FLOAT/FLOAT; 1.")


def test_scales_cover_what_is_there() -> None:
    cache = new_cache()
    key, value = grow(cache, [9])
    scales = cache.scales("INT8", "UINT4")
    assert set(scales) == {"key_scale", "key_zero_point", "value_scale", "value_zero_point"}
    for i in range(LAYERS):
        assert scales["key_zero_point"][i] == 0
        assert scales["key_scale"][i] == pytest.approx(np.abs(key).max() / 127)
        step, zero_point = scales["value_scale"][i], scales["value_zero_point"][i]
        assert -zero_point * step - step / 2 <= value.min() <= value.max() <= (15 - zero_point) * step + step / 2
    assert cache.scales("FLOAT", "BFLOAT16") == {}
    with pytest.raises(ValueError, match="value_format: expected one of FLOAT"):
        cache.scales("INT8", "INT5")


def with_length(new: np.ndarray, length: int) -> np.ndarray:
    message = PagedCacheProto.FromString(new.tobytes())
    message.blocks[-1].length = length
    return np.frombuffer(message.SerializeToString(), np.uint8)


def without_value(new: np.ndarray) -> np.ndarray:
    message = PagedCacheProto.FromString(new.tobytes())
    message.blocks[-1].ClearField("value")
    return np.frombuffer(message.SerializeToString(), np.uint8)


@pytest.mark.parametrize("start", [5, 200])
@pytest.mark.parametrize(("change", "message"), [
    (lambda at, key, value: appended(at, key[:1], value[:1]), "expected batch 2 .* got 1"),
    (lambda at, key, value: appended(at, key[:, :1], value[:, :1]), "expected kv_heads 2 .* got 1"),
    (lambda at, key, value: appended(at, key[..., :4], value), "expected key_width 5 .* got 4"),
    (lambda at, key, value: appended(at, key, value[..., :2]), "expected value_width 3 .* got 2"),
    (lambda at, key, value: appended(at + 1, key, value), "expected pages from token"),
    (lambda at, key, value: with_length(appended(at, key, value), 3), "capacity"),
    (lambda at, key, value: without_value(appended(at, key, value)), "value: expected a payload, got none"),
    (lambda at, key, value: appended(at, key, value).astype(np.int32), "expected bytes or a rank-1 .* got int32"),
])  # fmt: skip
def test_pages_that_do_not_fit(change: Callable[..., np.ndarray], message: str, start: int) -> None:
    """Nothing has changed then, though the layer before had what it should have."""
    cache = new_cache()
    grow(cache, [start])
    before = [cache.layer(i) for i in range(LAYERS)]
    key, value = tokens(2, 1)
    bad = change(start, key, value)
    with pytest.raises((CacheError, TypeError), match=f"PagedKVCache: appended_1.*{message}"):
        cache.append([appended(start, key, value), bad])
    assert [cache.layer(i) for i in range(LAYERS)] == before
    more = grow(cache, [1] * 9, seed=2)
    assert cache.tokens == start + 9
    np.testing.assert_array_equal(cache.layer(1).to_dense()[0][:, :, start:], more[0])


def test_an_error_while_pages_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = new_cache()
    content = grow(cache, [3])
    calls = []

    def failing(buffer: np.ndarray, begin: int, end: int, limit: int) -> int:
        calls.append(end)
        if len(calls) == LAYERS:
            buffer[begin:end] = 0
            raise MemoryError
        return merge_pages(buffer, begin, end, limit)

    key, value = tokens(1, 1)
    with monkeypatch.context() as patched:
        patched.setattr(layer_module, "merge_pages", failing)
        with pytest.raises(MemoryError):
            cache.append([appended(3, key, value)] * LAYERS)
    assert cache.tokens == 3
    check_content(cache, *content)
    cache.append([appended(3, key, value)] * LAYERS)
    check_content(cache, *joined(content, (key, value)))


def test_an_error_of_the_policy() -> None:
    cache = new_cache(policy=ReformatPolicy(older_than=2, key_format="FLOAT16", value_format="FLOAT16", every=4))
    first, large = tokens(4), tuple(np.full_like(x, 1e30) for x in tokens(4))
    cache.append([appended(0, *first), appended(0, *large)])
    key, value = tokens(4, 1)
    before = [cache.layer(i) for i in range(LAYERS)]
    with pytest.raises(CacheError, match="page at token 0, key: expected finite values"):
        cache.append([appended(4, key, value)] * LAYERS)
    assert [cache.layer(i) for i in range(LAYERS)] == before
    cache.policy = None
    cache.append([appended(4, key, value)] * LAYERS)
    assert cache.tokens == 8
