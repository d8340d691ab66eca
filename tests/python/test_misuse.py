"""Every public method with what does not belong there: one sentence, and the object is as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from decode.pages import appended, tokens
from rewrite.decoders import decoder

import onnx_ai_rt
from onnx_ai_rt import PagedCache, PagedKVCache, ReformatPolicy
from onnx_ai_rt.rewrite import CacheNames

K, V = tokens(5)
NEW = appended(5, *tokens(1))
MODEL = decoder()
HUGE = 1 << 70


def objects() -> dict[str, Any]:
    """Names that do not depend on Python, and something of every kind."""
    return {
        "None": None,
        "text": "ab",
        "bytes": b"ab",
        "float": 0.7,
        "NaN": float("nan"),
        "negative": -1,
        "zero": 0,
        "three": 3,
        "huge": HUGE,
        "complex": 1j,
        "object": object(),
        "empty list": [],
        "list of None": [None],
        "list of text": ["a"],
        "dict": {},
        "iterator": iter([0]),
        "floats": np.zeros((2, 3)),
        "bytes of a cache": np.zeros(3, np.uint8),
        "bytes of rank 2": np.zeros((2, 3), np.uint8),
        "codes": np.zeros((2, 2, 1, 5), np.int32),
        "complex numbers": np.zeros((2, 2, 1, 5), complex),
        "objects": np.array([None, 1], object),
        "texts": np.array(["a"]),
        "numpy integer": np.int64(2),
    }


Call = Callable[[Any, Any], object]
# The argument that gets the object, and which of the objects are welcome there.
CACHE: dict[str, tuple[Call, str]] = {
    "data": (lambda c, x: PagedCache(x), ""),
    "place": (lambda c, x: PagedCache(b"a", place=x), ""),
    "from_dense key": (lambda c, x: PagedCache.from_dense(x, V), ""),
    "append key": (lambda c, x: c.append(x, V), ""),
    "append value": (lambda c, x: c.append(K, x), ""),
    "page_size": (lambda c, x: PagedCache.from_dense(K, V, x), "three, numpy integer"),
    "append key_format": (lambda c, x: PagedCache.from_dense(K, V, 2, x), "None"),
    "append value_format": (lambda c, x: PagedCache.from_dense(K, V, 2, None, x), "None"),
    "message": (lambda c, x: PagedCache.from_proto(x), ""),
    "key_format": (lambda c, x: c.quantize(x, "INT8"), ""),
    "value_format": (lambda c, x: c.quantize("INT8", x), ""),
    "pages": (lambda c, x: c.quantize("INT8", "INT8", pages=x), "None, empty list, dict, iterator"),
    "a page": (lambda c, x: c.quantize("INT8", "INT8", pages=[x]), "zero, numpy integer"),
    "key_scale": (
        lambda c, x: c.quantize("INT8", "INT8", key_scale=x, value_scale=1.0),
        "None, float, three, huge, numpy integer",
    ),
    "value_scale": (lambda c, x: c.quantize("INT8", "INT8", value_scale=x), "None, float, three, huge, numpy integer"),
    "key_zero_point": (
        lambda c, x: c.quantize("INT8", "INT8", key_scale=1.0, key_zero_point=x, value_scale=1.0),
        "negative, zero, three, numpy integer",
    ),
    "value_zero_point": (
        lambda c, x: c.quantize("INT8", "INT8", value_scale=1.0, value_zero_point=x),
        "negative, zero, three, numpy integer",
    ),
    "original": (lambda c, x: list(c.errors(x)), ""),
    "original key": (lambda c, x: list(c.errors((x, V))), ""),
    "load": (lambda c, x: PagedCache.load(x), ""),
    "save": (lambda c, x: c.save(x), "text, bytes"),
    "page": (lambda c, x: c.pages[x], "negative, zero, numpy integer"),
}
KV_CACHE: dict[str, tuple[Call, str]] = {
    "layers": (lambda c, x: PagedKVCache(x), "three, numpy integer"),
    "a layer's names": (lambda c, x: PagedKVCache([x]), ""),
    "block_size": (lambda c, x: PagedKVCache(1, block_size=x), "three, numpy integer"),
    "policy": (lambda c, x: PagedKVCache(1, policy=x), "None"),
    "later policy": (lambda c, x: setattr(c, "policy", x), "None"),
    "for_model": (lambda c, x: PagedKVCache.for_model(x), ""),
    "layer": (lambda c, x: c.layer(x), "negative, zero"),
    "append": (lambda c, x: c.append(x), ""),
    "appended": (lambda c, x: c.append([NEW, x]), ""),
    "appended by name": (lambda c, x: c.append({"appended_0": NEW, "appended_1": x}), ""),
    "another name": (lambda c, x: c.append({"appended_0": NEW, "logits": x}), ""),
    "replace": (lambda c, x: c.replace(x), ""),
    "a cache": (lambda c, x: c.replace([c.layer(0), x]), ""),
    "session": (lambda c, x: c.run(x, {}), ""),
    "truncate": (lambda c, x: c.fork().truncate(x), "zero, three, numpy integer"),
    "key_format": (lambda c, x: c.reformat(x, "INT8"), ""),
    "value_format": (lambda c, x: c.reformat("INT8", x), ""),
    "older_than": (lambda c, x: c.fork().reformat("INT8", "INT8", older_than=x), "zero, three, numpy integer"),
    "scales of keys": (lambda c, x: c.scales(x, "INT8"), ""),
    "scales of values": (lambda c, x: c.scales("INT8", x), ""),
    "load": (lambda c, x: PagedKVCache.load(x), ""),
    "save": (lambda c, x: c.save(x), "text, bytes"),
}
OTHERS: dict[str, tuple[Call, str]] = {
    "older_than": (lambda c, x: ReformatPolicy(x, "INT8", "INT8"), "zero, three, numpy integer"),
    "every": (lambda c, x: ReformatPolicy(1, "INT8", "INT8", x), "three, numpy integer"),
    "policy key_format": (lambda c, x: ReformatPolicy(1, x, "INT8"), ""),
    "model": (lambda c, x: onnx_ai_rt.to_paged(x), ""),
    "outputs": (lambda c, x: onnx_ai_rt.to_paged(MODEL, outputs=x), ""),
    "to_paged key_format": (lambda c, x: onnx_ai_rt.to_paged(MODEL, key_format=x), "None"),
    "block_size": (lambda c, x: onnx_ai_rt.to_paged(MODEL, block_size=x), "three, numpy integer"),
    "max_tokens": (lambda c, x: onnx_ai_rt.to_paged(MODEL, max_tokens=x), "zero, three, numpy integer"),
    "left_window_size": (
        lambda c, x: onnx_ai_rt.to_paged(MODEL, left_window_size=x),
        "negative, zero, three, numpy integer",
    ),
    "ones": (lambda c, x: onnx_ai_rt.to_paged(MODEL, ones=x), "empty list, dict"),
    "an input of ones": (lambda c, x: onnx_ai_rt.to_paged(MODEL, ones=[x]), ""),
    "key_scale": (
        lambda c, x: onnx_ai_rt.to_paged(MODEL, key_format="INT8", key_scale=x),
        "None, float, three, huge, numpy integer",
    ),
    "a key_scale": (
        lambda c, x: onnx_ai_rt.to_paged(MODEL, key_format="INT8", key_scale=[1.0, x]),
        "float, three, huge, numpy integer",
    ),
    "key_zero_point": (
        lambda c, x: onnx_ai_rt.to_paged(MODEL, key_format="INT8", key_scale=1.0, key_zero_point=x),
        "None, negative, zero, three, numpy integer",
    ),
    "a key_zero_point": (
        lambda c, x: onnx_ai_rt.to_paged(MODEL, key_format="INT8", key_scale=1.0, key_zero_point=[0, x]),
        "negative, zero, three, numpy integer",
    ),
    "ortvalue": (lambda c, x: onnx_ai_rt.from_ortvalue(x), ""),
    "target": (lambda c, x: onnx_ai_rt.choose_cpu_target(x), ""),
}


def cache() -> PagedCache:
    return PagedCache.from_dense(K, V, 2)


def kv_cache() -> PagedKVCache:
    result = PagedKVCache(2, block_size=4)
    result.append([appended(0, K, V)] * 2)
    return result


def content(of: object) -> object:
    if isinstance(of, PagedCache):
        return of.to_bytes()
    return [layer.tobytes() for layer in of.inputs().values()] if isinstance(of, PagedKVCache) else None


CASES = [
    pytest.param(make, call, name, set(welcome.split(", ")), id=f"{kind}, {argument}, {name}")
    for kind, make, table in (("PagedCache", cache, CACHE), ("PagedKVCache", kv_cache, KV_CACHE), ("", None, OTHERS))
    for argument, (call, welcome) in table.items()
    for name in objects()
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("make", "call", "name", "welcome"), CASES)
def test_what_does_not_belong_there(
    make: Callable[[], object] | None,
    call: Call,
    name: str,
    welcome: set[str],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # a name of a file is relative
    subject = make() if make else None
    before = content(subject)
    if name in welcome:
        call(subject, objects()[name])
    else:
        with pytest.raises((TypeError, ValueError, OSError, IndexError)) as error:
            call(subject, objects()[name])
        text = str(error.value)
        assert "\n" not in text
        assert isinstance(error.value, OSError) or ("expected" in text and "got" in text) or "has no" in text
    assert content(subject) == before


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: PagedKVCache(0), ValueError, "PagedKVCache: layers: expected 1 or more, got 0"),
        (lambda: PagedKVCache(1 << 40), ValueError, "PagedKVCache: layers: expected at most 65536, got 1099511627776"),
        (lambda: PagedKVCache(2.0), TypeError, "PagedKVCache: layers: expected a number, or a list of .*, got 2.0"),
        (lambda: PagedKVCache("ab"), TypeError, "layers: expected a number, or a list of CacheNames, got 'ab'"),
        (lambda: PagedKVCache([]), ValueError, "PagedKVCache: layers: expected one layer or more, got none"),
        (lambda: kv_cache().append(NEW), TypeError, "append: expected a list of one .*, got uint8 array of shape"),
        (lambda: kv_cache().append({"x": NEW}), ValueError, "append: expected the output 'appended_0', got 'x'"),
        (lambda: kv_cache().append([b"", None]), TypeError, "appended_1: expected bytes or a .*, got None"),
        (
            lambda: PagedKVCache([CacheNames("c", "", "p")]).append({"p": NEW}),
            ValueError,
            "append: expected a model with outputs 'appended', got 'p'",
        ),
        (lambda: kv_cache().replace([None, None]), TypeError, "PagedKVCache, layer 0: expected bytes or .*, got None"),
        (lambda: kv_cache().run(None, {}), TypeError, "PagedKVCache.run: expected a session, got None"),
        (lambda: kv_cache().layer(2), ValueError, "PagedKVCache.layer: expected an index from 0 to 1, got 2"),
        (lambda: onnx_ai_rt.to_paged(None), TypeError, "to_paged: model: expected an onnx.ModelProto, got None"),
        (
            lambda: onnx_ai_rt.to_paged(MODEL, key_format="INT8", key_scale=1.0, key_zero_point=0.5),
            TypeError,
            "to_paged: key_zero_point: expected an integer, got 0.5",
        ),
        (
            lambda: onnx_ai_rt.to_paged(MODEL, value_format="INT8", value_scale=1e300),
            ValueError,
            r"to_paged: value_scale: expected a positive finite float, got 1e\+300",
        ),
        (lambda: cache().quantize("INT8", "INT8", pages=[0.7]), TypeError, "quantize: pages: expected an integer"),
        (lambda: PagedCache().quantize("INT8", "INT8", pages=[0]), ValueError, "expected none, since .*, got 0"),
        (lambda: cache().append(K, "x"), TypeError, "PagedCache.append: value: expected a numpy array, got 'x'"),
        (lambda: PagedCache.load("a\0b"), ValueError, "PagedCache.load: path: expected a path without zero char"),
    ],
)
def test_whole_sentences(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_bytes_are_taken_as_arrays_are() -> None:
    new = appended(5, *tokens(1))
    of_arrays, of_bytes = kv_cache(), kv_cache()
    of_arrays.append([new] * 2)
    of_bytes.append([new.tobytes(), memoryview(new)])
    assert content(of_arrays) == content(of_bytes)
    of_bytes.replace([of_arrays.layer(0).to_bytes()] * 2)
    assert content(of_arrays) == content(of_bytes)
    scattered = np.repeat(new, 2)[::2]
    assert not scattered.flags.c_contiguous
    one = PagedKVCache(1)
    one.append([np.repeat(appended(0, K, V), 2)[::2]])
    one.append([scattered])
    assert one.tokens == 6


def test_scales_of_layers_as_an_array() -> None:
    one, other = (
        onnx_ai_rt.to_paged(MODEL, key_format="INT8", key_scale=scale) for scale in ([0.5, 0.25], np.array([0.5, 0.25]))
    )
    assert one.model == other.model


def test_a_failed_reformat_changes_no_layer() -> None:
    large = tuple(np.full_like(x, 1e30) for x in (K, V))
    both = PagedKVCache(2)
    both.append([appended(0, K, V), appended(0, *large)])
    before = content(both)
    with pytest.raises(ValueError, match="page at token 0, key: expected finite values"):
        both.reformat("FLOAT16", "FLOAT16")
    assert content(both) == before


def test_metadata_that_names_no_caches() -> None:
    for text in ("", "[1]", '[{"a": 1}]', "{"):
        model = onnx.ModelProto()
        entry = model.metadata_props.add()
        entry.key, entry.value = "onnx_ai_rt.paged_caches", text
        with pytest.raises(ValueError, match=r"metadata 'onnx_ai_rt\.paged_caches': expected names of caches as JSON"):
            PagedKVCache.for_model(model)
