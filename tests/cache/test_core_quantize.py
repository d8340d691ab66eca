"""QuantizePagedCache on bytes, in C++, against the reference: byte for byte, and the same errors."""

import numpy as np
import pytest
from cache import wire_writer as w
from cache.compare import needs_compiled_protobuf, read_core
from cache.defects import DEFECTS, base, broken, missing_words
from cache.strategies import caches, scrambled_caches
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_ai_rt import _core
from onnx_ai_rt.proto import PagedCacheProto
from onnx_ai_rt.reference.paged_cache import CacheError
from onnx_ai_rt.reference.quantize import FORMATS, Format
from onnx_ai_rt.reference.quantize_paged_cache import quantize_paged_cache

FORMAT_LIST = list(FORMATS.values())
INT8, FLOAT = FORMATS["INT8"], FORMATS["FLOAT"]


def core(data, indices, key, value, **more) -> bytes:
    """key and value: (format, scale, zero point)."""
    arguments = [x for format, scale, zero in (key, value) for x in (scale, format.data_type, zero)]
    return bytes(_core.quantize_paged_cache(data, np.array(indices, np.int64), *arguments, **more))


def reference(data, indices, key, value) -> bytes:
    arguments = [x for f, scale, zero in (key, value) for x in (np.float32(scale), np.array(zero).astype(f.dtype))]
    return quantize_paged_cache(data, np.array(indices, np.int64), *arguments)


@st.composite
def targets(draw) -> tuple[Format, float, int]:
    format = draw(st.sampled_from(FORMAT_LIST))
    scale = float(np.float32(draw(st.sampled_from((1.0, 0.1, 0.25, 3.0, 1e-3, 1e5, 1e-30)))))
    return format, scale, draw(st.integers(format.low, format.high))


def assert_same_result(data, indices, key, value):
    try:
        expected = reference(data, indices, key, value)
    except CacheError as error:
        with pytest.raises(ValueError, match=str(error).split(",")[1]):  # the same block
            core(data, indices, key, value)
        return
    got = core(data, indices, key, value)
    assert got == expected
    assert core(data, indices, key, value, threads=3) == expected


@given(scrambled_caches(), targets(), targets(), st.data())
@settings(max_examples=150)
def test_any_cache_and_selection(case, key, value, draw):
    cache, data = case
    indices = draw.draw(st.permutations(range(len(cache.blocks))))
    indices = indices[: draw.draw(st.integers(0, len(indices)))]
    assert_same_result(data, indices, key, value)


@given(caches(max_blocks=3, max_capacity=40), targets(), targets())
@settings(max_examples=50)
def test_larger_pages(cache, key, value):
    assert_same_result(cache.SerializeToString(), range(len(cache.blocks)), key, value)


@given(scrambled_caches(), targets())
@settings(max_examples=50)
def test_result_is_a_cache_that_protobuf_reads(case, target):
    cache, data = case
    try:
        result = core(data, range(len(cache.blocks)), target, target)
    except ValueError:
        return
    message = PagedCacheProto.FromString(result)
    assert [(b.start, b.length) for b in message.blocks] == [(b.start, b.length) for b in cache.blocks]
    assert message.name == cache.name
    assert len(read_core(result)) == len(cache.blocks)


def large(pages=5, tokens=33, heads=3, width=64, last=None) -> bytes:
    """Float pages, together large enough to be cut into several jobs; the last one may be partly filled."""
    rng = np.random.default_rng(0)
    data = b""
    for i in range(pages):
        x = rng.normal(size=(2, heads, tokens, width)).astype(np.float32)
        tensors = [w.tensor(w.FLOAT, x.shape, part.tobytes()) for part in (x, -x)]
        length = last if last and i == pages - 1 else tokens
        data += w.block(i * tokens, length, w.data(3, tensors[0]), w.data(5, tensors[1]))
    return data


def test_threads_make_no_difference():
    data = large(pages=4, tokens=301, width=77, last=300)
    for format in FORMAT_LIST:
        target = (format, 0.01, 1 if format.is_affine else 0)
        results = {core(data, [3, 1], target, target, threads=n) for n in (1, 2, 3, 7)}
        assert results == {reference(data, [3, 1], target, target)}


@needs_compiled_protobuf
def test_unselected_pages_and_unknown_fields_stay():
    pieces = [
        w.number(77, 5),
        w.block(0, 1, w.data(3, page(1)), w.group(9, w.number(1, 2)), w.data(5, page(2)), w.data(1000, "x")),
        w.data(2, "named twice"),
        w.tag(1, 2, 4) + w.varint(len(page_body(1)), 5) + page_body(1),
        w.fixed64(50, b"12345678"),
        w.data(2, "named"),
    ]
    data = b"".join(pieces)
    target = (INT8, 0.5, 3)
    assert core(data, [], target, target) == data
    first = core(data, [0], target, target)
    assert first.startswith(pieces[0])
    assert first.endswith(b"".join(pieces[2:]))
    assert first.count(w.group(9, w.number(1, 2)) + w.data(1000, "x")) == 1
    second = core(data, [1], target, target)
    assert second.startswith(b"".join(pieces[:3]))
    assert second.endswith(b"".join(pieces[4:]))
    for indices in ([0], [1], [0, 1], [1, 0]):
        assert core(data, indices, target, target) == reference(data, indices, target, target)


def page(x: float) -> bytes:
    return w.tensor(w.FLOAT, (1, 1, 2, 1), w.floats(x, float("nan")), name="p")


def page_body(start: int) -> bytes:
    return w.number(1, start) + w.number(2, 1) + w.data(3, page(1)) + w.data(5, page(2))


def test_names_move_between_the_message_types():
    data = w.block(0, 1, w.data(3, page(1) + w.data(12, "doc")), w.data(5, page(2) + w.number(99, 1)))
    encoded = core(data, [0], (INT8, 0.5, 0), (FORMATS["UINT2"], 1, 0))
    block = PagedCacheProto.FromString(encoded).blocks[0]
    assert (block.encoded_key.name, block.encoded_key.doc_string) == ("p", "doc")
    assert block.encoded_value.name == "p"
    assert not block.encoded_value.HasField("doc_string")
    assert w.number(99, 1) not in encoded
    restored = PagedCacheProto.FromString(core(encoded, [0], (FLOAT, 1, 0), (FLOAT, 1, 0))).blocks[0]
    assert (restored.key.name, restored.key.doc_string, restored.value.name) == ("p", "doc", "p")
    assert restored.key.raw_data == w.floats(1, 0)


def test_empty_caches():
    target = (INT8, 1, 0)
    assert core(b"", [], target, target) == b""
    named = w.data(2, "nothing") + w.data(3, "here")
    assert core(named, [], target, target) == named


BAD_INDICES = [
    ([5], "got 5 at position 0"),
    ([-1], "got -1"),
    ([0, 3], "got 3 at position 1"),
    ([1, 0, 1], "got 1 again"),
]


@pytest.mark.parametrize(("indices", "words"), BAD_INDICES)
def test_wrong_indices(indices, words):
    with pytest.raises(ValueError, match=f"^ai.rt::QuantizePagedCache: input block_indices: expected .*{words}"):
        core(base().SerializeToString(), indices, (INT8, 1, 0), (INT8, 1, 0))


@pytest.mark.parametrize("scale", [0.0, -0.0, -1.0, float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("format", [INT8, FLOAT], ids=lambda f: f.name)
def test_wrong_scales(side, scale, format):
    targets = {"key": (format, 1.0, 0), "value": (format, 1.0, 0)} | {side: (format, scale, 0)}
    with pytest.raises(ValueError, match=f"input {side}_scale: expected a positive and finite number"):
        core(base().SerializeToString(), [], *targets.values())


@pytest.mark.parametrize("defect", DEFECTS, ids=[d.name for d in DEFECTS])
def test_defects_of_pages_that_are_not_selected(defect):
    with pytest.raises(ValueError, match=r"^ai.rt::QuantizePagedCache: input cache, block ") as error:
        core(broken(defect).SerializeToString(), [], (INT8, 1, 0), (INT8, 1, 0))
    assert missing_words(str(error.value), defect.words) == []


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_first_failure_is_reported(bad, threads):
    blocks = []
    for i in range(6):
        x = np.ones((2, 2, 3, 4), np.float32)
        y = x.copy()
        if i in (2, 4):
            y[1, 0, 1, 3] = bad
        if i == 4:
            x[0, 0, 0, 0] = bad
        tensors = [w.tensor(w.FLOAT, x.shape, part.tobytes()) for part in (x, y)]
        blocks.append(w.block(i * 2, 2, w.data(3, tensors[0]), w.data(5, tensors[1])))
    data = b"".join(blocks)
    message = f"block 2, value: expected finite values .*, got {bad} at batch 1, head 0, token 1, column 3$"
    with pytest.raises(ValueError, match=message):
        core(data, range(6), (INT8, 1, 0), (INT8, 1, 0), threads=threads)
    core(data, [0, 1, 3, 5], (INT8, 1, 0), (INT8, 1, 0), threads=threads)


def test_overflow_names_the_range():
    x = np.full((1, 1, 1, 2), 70000, np.float32)
    tensor = w.tensor(w.FLOAT, x.shape, x.tobytes())
    data = w.block(0, 1, w.data(3, tensor), w.data(5, tensor))
    with pytest.raises(ValueError, match=r"block 0, key: expected .* range of float16, got 70000.*column 0$"):
        core(data, [0], (FORMATS["FLOAT16"], 1, 0), (FLOAT, 1, 0))
    assert core(data, [0], (INT8, 1e-30, 0), (FORMATS["BFLOAT16"], 1, 0))


def test_into_a_given_buffer():
    data = large()
    target = (INT8, 0.02, 0)
    expected = core(data, range(5), target, target)
    out = np.zeros(len(data), np.uint8)
    result = _core.quantize_paged_cache(data, np.arange(5), 0.02, 3, 0, 0.02, 3, 0, out=out)
    assert bytes(result) == expected
    assert np.shares_memory(result, out)
    with pytest.raises(ValueError, match="out: expected at least"):
        _core.quantize_paged_cache(data, np.arange(5), 0.02, 3, 0, 0.02, 3, 0, out=out[:100])


def test_dimensions_of_zero():
    for shape in ((0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 3, 0), (1 << 40, 1, 3, 0)):
        tensor = w.tensor(w.FLOAT, shape, b"")
        data = w.block(0, 2, w.data(3, tensor), w.data(5, tensor))
        target = (FORMATS["INT4"], 1.0, 0)
        assert core(data, [0], target, (FLOAT, 1, 0)) == reference(data, [0], target, (FLOAT, 1, 0))
