"""The numpy reference against slower and independent arithmetic."""

import itertools
import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import onnx
import pytest
from cache.defects import base
from cache.strategies import ALL_FORMATS, BITS, DENSE, cache_bytes, caches, code_range, pack
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from onnx_ai_rt.proto import PagedCacheProto
from onnx_ai_rt.reference import wire
from onnx_ai_rt.reference.paged_cache import CacheError, parse, validate
from onnx_ai_rt.reference.quantize import (
    FORMATS,
    dequantize,
    expand_parameters,
    narrow,
    pack_codes,
    quantize,
    scale_for,
    unpack_codes,
)
from onnx_ai_rt.reference.quantize_paged_cache import QuantizePagedCache, quantize_paged_cache

F32 = np.float32
LARGEST, SMALLEST = float(np.finfo(F32).max), float(np.finfo(F32).smallest_subnormal)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(BITS)), st.integers(0, 2**32 - 1), st.integers(0, 23))
def test_packing(name, seed, count):
    low, high = code_range(name)
    codes = np.random.default_rng(seed).integers(low, high + 1, count)
    data = pack_codes(codes, BITS[name])
    assert data == pack(codes, BITS[name])
    np.testing.assert_array_equal(unpack_codes(data, FORMATS[name], count), codes)


@pytest.mark.parametrize(
    ("x", "scale", "zero_point", "name", "expected"),
    [
        (0.125, 0.25, 0, "INT8", 0),  # ties to even
        (0.375, 0.25, 0, "INT8", 2),
        (-0.375, 0.25, 0, "INT8", -2),
        (0.125, 0.25, 1, "INT8", 1),  # the quotient is rounded, then the zero point added
        (-0.0, 0.25, 3, "UINT4", 3),
        (1e30, 1e-30, 0, "INT8", 127),  # the quotient is infinite
        (-1e30, 1e-30, 0, "INT8", -128),
        (-1e30, 1e-30, 255, "UINT8", 0),
        (LARGEST, SMALLEST, 0, "UINT2", 3),
        (SMALLEST, SMALLEST, 0, "INT4", 1),
        (SMALLEST, LARGEST, 0, "INT4", 0),
        (3e9, 1.0, -128, "INT8", 127),
        (-3e9, 1.0, 127, "INT8", -128),
        (1.0, 0.25, 1, "INT2", 1),
        (-1.0, 0.25, 1, "INT2", -2),
        (1.3, 0.1, 0, "INT8", 13),  # the float quotient is exactly 13
    ],
)
def test_quantize(x, scale, zero_point, name, expected):
    assert quantize(np.array([x], F32), scale, zero_point, FORMATS[name]).tolist() == [expected]


@settings(max_examples=200, deadline=None)
@given(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(SMALLEST, LARGEST, width=32, exclude_min=False),
    st.sampled_from(sorted(BITS)),
    st.data(),
)
def test_quantize_is_the_exact_quotient_rounded_twice(x, scale, name, data):
    zero_point = data.draw(st.integers(*code_range(name)))
    exact = Fraction(x) / Fraction(scale)
    with np.errstate(over="ignore"):
        quotient = F32(float(exact)) if abs(exact) < Fraction(10) ** 300 else F32(np.inf)
    if not np.isfinite(quotient) or abs(quotient) >= 2**20:
        expected = code_range(name)[x > 0]
    elif F32(x) / F32(scale) != quotient:
        return  # rounded twice by way of double
    else:
        expected = int(np.clip(round(Fraction(float(quotient))) + zero_point, *code_range(name)))
    assert quantize(np.array([x], F32), scale, zero_point, FORMATS[name]).tolist() == [expected]


@pytest.mark.parametrize("name", ["INT8", "UINT8", "INT4", "UINT4"])
def test_as_onnx_quantize_linear(name):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(4, 257)) * 3).astype(F32)
    scale, zero_point = F32(0.037), np.array(3, FORMATS[name].dtype)
    dtype = FORMATS[name].data_type
    value = onnx.helper.make_tensor_value_info
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        onnx.helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    initializers = [onnx.numpy_helper.from_array(np.asarray(scale), "s"), onnx.numpy_helper.from_array(zero_point, "z")]
    graph = onnx.helper.make_graph(
        nodes, "g", [value("x", 1, x.shape)], [value("q", dtype, x.shape), value("y", 1, x.shape)], initializers
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    codes, decoded = ReferenceEvaluator(model).run(None, {"x": x})
    ours = quantize(x, scale, 3, FORMATS[name])
    np.testing.assert_array_equal(ours, codes.astype(np.int32))
    np.testing.assert_array_equal(dequantize(ours, scale, 3), decoded)


@pytest.mark.parametrize("axis", range(-4, 4))
@pytest.mark.parametrize("block_size", [None, 1, 2, 3, 100, 1 << 63])
def test_expand_parameters(axis, block_size):
    shape = (2, 3, 5, 4)
    parameter_shape = list(shape)
    if block_size is None:
        parameters = np.arange(shape[axis])
    else:
        parameter_shape[axis] = -(-shape[axis] // block_size)
        parameters = np.arange(np.prod(parameter_shape)).reshape(parameter_shape)
    expanded = expand_parameters(parameters, shape, axis, block_size)
    assert expanded.shape == shape
    for index in itertools.product(*map(range, shape)):
        at = list(index)
        at[axis] //= block_size or 1
        assert expanded[index] == (parameters[at[axis]] if block_size is None else parameters[tuple(at)])


def test_narrowing_rounds_to_even():
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 3 * 2**-25, 65519, -0.0], F32)
    np.testing.assert_array_equal(
        narrow(x, FORMATS["FLOAT16"]).astype(F32), np.array([1, 1 + 2**-9, 0, 2**-23, 65504, -0.0], F32)
    )
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, -0.0], F32)
    np.testing.assert_array_equal(narrow(x, FORMATS["BFLOAT16"]).astype(F32), np.array([1, 1 + 2**-6, -0.0], F32))


@pytest.mark.parametrize("name", sorted(BITS))
@pytest.mark.parametrize(
    ("low", "high"), [(-3.0, 1.0), (0.0, 7.0), (2.0, 3.0), (0.0, 0.0), (0.0, SMALLEST), (-LARGEST, LARGEST)]
)
def test_scale_covers_the_range(name, low, high):
    scale, zero_point = scale_for(low, high, FORMATS[name])
    assert scale > 0
    assert np.isfinite(F32(scale))
    assert F32(scale) == scale
    x = np.array([low, high], F32)
    decoded = dequantize(quantize(x, scale, zero_point, FORMATS[name]), scale, zero_point)
    np.testing.assert_array_less(np.abs(decoded.astype(np.float64) - x), scale * 1.001)


def markers(name, code=0):
    return np.array(code, FORMATS[name].dtype)


def convert(data, indices, key, value, key_code=0, value_code=0, key_scale=0.05, value_scale=0.3):
    return quantize_paged_cache(
        data,
        np.array(indices, np.int64),
        F32(key_scale),
        markers(key, key_code),
        F32(value_scale),
        markers(value, value_code),
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convert(data):
    """Every source and destination; bytes of other blocks and fields stay, unknown fields included."""
    cache = data.draw(caches(formats=data.draw(st.sampled_from((ALL_FORMATS, tuple(BITS))))))
    before = data.draw(cache_bytes(cache))
    count = len(cache.blocks)
    selected = data.draw(st.permutations(range(count)).flatmap(lambda p: st.integers(0, count).map(lambda n: p[:n])))
    targets = data.draw(st.tuples(st.sampled_from(ALL_FORMATS), st.sampled_from(ALL_FORMATS)))
    codes = tuple(data.draw(st.integers(*code_range(n))) if n in BITS else 0 for n in targets)
    scales = (0.05, 0.3)
    refused = ""
    try:
        after = convert(before, selected, *targets, *codes)
    except CacheError as error:
        refused = str(error)
    if refused:
        assert re.search("in the range of B?FLOAT16", refused)  # 1e30 and more in a half format
        return
    old, new = validate(parse(before)), validate(parse(after))
    old_fields, new_fields = list(wire.read_fields(before)), list(wire.read_fields(after))
    index = 0
    for a, b in zip(old_fields, new_fields, strict=True):
        is_block = (a.number, a.wire_type) == (1, wire.BYTES)
        if not is_block or index not in selected:
            assert before[a.begin : a.end] == after[b.begin : b.end]
        index += is_block
    for i, (x, y) in enumerate(zip(old, new, strict=True)):
        assert (x.start, x.length) == (y.start, y.length)
        if i not in selected:
            continue
        for side, name, code, scale in zip(("key", "value"), targets, codes, scales, strict=True):
            source, result = getattr(x, side), getattr(y, side)
            assert (result.shape, result.format.name) == (source.shape, name)
            decoded = source.decode()
            if name in DENSE:
                expected = decoded.astype(DENSE[name]).astype(F32)
                raw = result.message.raw_data
                rest = np.frombuffer(raw, f"u{result.format.bits // 8}").reshape(source.shape)[:, :, x.length :]
                assert not rest.any()
            else:
                low, high = code_range(name)
                with np.errstate(over="ignore"):
                    quotient = np.clip(np.round(decoded / F32(scale)), -1000, 1000)
                expected = (np.clip(quotient + code, low, high) - code).astype(F32) * F32(scale)
                stored = unpack_codes(result.message.raw_data, result.format, int(np.prod(source.shape)))
                assert (stored.reshape(source.shape)[:, :, x.length :] == code).all()
            np.testing.assert_array_equal(result.decode(), expected)
            for text in ("name", "doc_string"):
                assert result.message.HasField(text) == source.message.HasField(text)
                assert getattr(result.message, text) == getattr(source.message, text)


def test_unknown_fields_of_a_converted_block_stay():
    cache = base()
    cache.blocks[1].MergeFromString(b"\xfa\x07\x03abc")  # field 127
    cache.blocks[1].encoded_key.MergeFromString(b"\xfa\x07\x03abc")
    after = convert(cache.SerializeToString(), [1], "FLOAT", "INT8")
    block = PagedCacheProto.FromString(after).blocks[1]
    assert block.SerializeToString().endswith(b"\xfa\x07\x03abc")
    assert b"abc" not in block.key.SerializeToString()


@pytest.mark.parametrize("place", ["valid", "unused"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("target", ["INT8", "FLOAT"])
def test_not_finite(place, bad, target):
    x = np.ones((1, 1, 2, 2), F32)
    x[0, 0, 0 if place == "valid" else 1, 1] = bad
    cache = PagedCacheProto()
    block = cache.blocks.add(start=0, length=1)
    block.key.CopyFrom(onnx.numpy_helper.from_array(np.ones((1, 1, 2, 2), F32)))
    block.value.CopyFrom(onnx.numpy_helper.from_array(x))
    data = cache.SerializeToString()
    if place == "unused":
        assert validate(parse(convert(data, [0], target, target)))
        return
    with pytest.raises(
        CacheError, match=r"^ai\.rt::QuantizePagedCache: input cache, block 0, value: expected finite values.*got"
    ):
        convert(data, [0], target, target)


def test_overflow():
    cache = PagedCacheProto()
    block = cache.blocks.add(start=0, length=1)
    for payload in (block.key, block.value):
        payload.CopyFrom(onnx.numpy_helper.from_array(np.full((1, 1, 1, 2), 65520, F32)))
    data = cache.SerializeToString()
    with pytest.raises(CacheError, match=r"block 0, value: expected values in the range of FLOAT16, got 65520"):
        convert(data, [0], "FLOAT", "FLOAT16")
    assert convert(data, [0], "BFLOAT16", "INT8")
    huge = convert(data, [0], "UINT8", "UINT8", value_scale=1e38, key_code=7)
    block = PagedCacheProto.FromString(huge)
    block.blocks[0].encoded_value.raw_data = b"\xff\xff"
    for target in ("FLOAT", "INT4"):
        with pytest.raises(CacheError, match=r"block 0, value: expected finite values .* got inf"):
            convert(block.SerializeToString(), [0], "FLOAT", target)


VALID = {
    "block_indices": np.array([0], np.int64),
    "key_scale": F32(1),
    "key_zero_point": np.int8(0),
    "value_scale": np.ones(1, F32),
    "value_zero_point": np.zeros(1, ml_dtypes.int2),
}


@pytest.mark.parametrize(
    ("name", "bad", "got"),
    [
        ("block_indices", np.array([0, 2, 0]), "got 0 twice"),
        ("block_indices", np.array([-1]), "got -1"),
        ("block_indices", np.array([3]), "from 0 to 2 .*got 3"),
        ("block_indices", np.array(0), r"got int64 of shape \[\]"),
        ("block_indices", np.array([0], np.int32), "got int32"),
        *(("key_scale", F32(s), "positive finite") for s in (0, -1, np.nan, np.inf)),
        ("key_scale", np.ones(2, F32), r"scalar, got float32 of shape \[2\]"),
        ("value_scale", np.ones((1, 1), F32), "scalar"),
        ("value_scale", np.float64(1), "got float64"),
        ("key_zero_point", np.int16(0), "got int16"),
        ("value_zero_point", np.zeros(2, np.int8), r"got int8 of shape \[2\]"),
    ],
)
def test_arguments(name, bad, got):
    data = base().SerializeToString()
    assert quantize_paged_cache(data, **VALID)
    with pytest.raises(CacheError, match=rf"^ai\.rt::QuantizePagedCache: input {name}: .*{got}"):
        quantize_paged_cache(data, **(VALID | {name: bad}))


def test_unselected_blocks_are_validated():
    cache = base()
    cache.blocks[2].start = 9
    with pytest.raises(CacheError, match="block 2: expected start 7"):
        convert(cache.SerializeToString(), [], "INT8", "INT8")


def test_reference_evaluator():
    value = onnx.helper.make_tensor_value_info
    names = list(VALID)
    node = onnx.helper.make_node("QuantizePagedCache", ["cache", *names], ["out"], domain="ai.rt")
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [value("cache", onnx.TensorProto.UINT8, ["n"])],
        [value("out", onnx.TensorProto.UINT8, ["m"])],
        [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in VALID.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 22), onnx.helper.make_opsetid("ai.rt", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    data = base().SerializeToString()
    (out,) = ReferenceEvaluator(model, new_ops=[QuantizePagedCache]).run(None, {"cache": np.frombuffer(data, np.uint8)})
    assert out.tobytes() == quantize_paged_cache(data, **VALID)
