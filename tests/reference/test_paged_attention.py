"""The reference of ai.rt::PagedAttention and PagedCacheLength."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from cache.strategies import ALL_FORMATS, scrambled_caches
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnx_ai_rt import reference_ops
from onnx_ai_rt.proto import EncodedValueProto, PagedCacheBlockProto, PagedCacheProto
from onnx_ai_rt.reference import attention, paged_attention, paged_cache_length
from onnx_ai_rt.reference.paged_cache import CacheError, parse, validate
from onnx_ai_rt.reference.quantize import FORMATS
from onnx_ai_rt.reference.quantize_paged_cache import quantize_paged_cache

TYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
NAN, INF = float("nan"), float("inf")


def new_tokens(
    rng: np.random.Generator, dtype: Any = np.float32, *, B: int = 1, Hq: int = 2, Hkv: int = 1, S: int = 1, D: int = 4,
    Dv: int = 4,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Q, K, V."""
    shapes = ((B, Hq, S, D), (B, Hkv, S, D), (B, Hkv, S, Dv))
    q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return q, k, v


def zero_point(name: str, value: int = 0) -> np.ndarray:
    """A scalar of that format."""
    return np.array(value).astype(FORMATS[name].dtype)


def scalar(value: float) -> np.ndarray:
    return np.array(value, np.float32)


# What it gives


@settings(max_examples=150)
@given(st.data(), scrambled_caches(), st.sampled_from(TYPES), st.integers(1, 9), st.integers(1, 4))
def test_it_is_attention_over_the_decoded_cache(
    data: st.DataObject, cache: tuple[PagedCacheProto, bytes], dtype: Any, new_len: int, group: int
) -> None:
    message, past = cache
    blocks = validate(message)
    rng = np.random.default_rng(0)
    sizes = {"B": 2, "Hkv": 3, "D": 5, "Dv": 7}
    if blocks:
        sizes["B"], sizes["Hkv"], _, sizes["D"] = blocks[0].key.shape
        sizes["Dv"] = blocks[0].value.shape[3]
    q, k, v = new_tokens(rng, dtype, S=new_len, Hq=sizes["Hkv"] * group, **sizes)
    attributes: dict[str, Any] = {
        "is_causal": data.draw(st.integers(0, 1)),
        "left_window_size": data.draw(st.integers(-1, 12)),
        "softcap": data.draw(st.sampled_from((0.0, 5.0))),
        "scale": data.draw(st.sampled_from((None, 0.0, -0.5, 1.0))),
    }
    block_size = data.draw(st.integers(1, 10))
    y, present, appended = paged_attention(q, k, v, past, block_size=block_size, **attributes)
    pasts = {
        f"past_{side}": np.concatenate(
            [x[:, :, :0].astype(np.float64), *(getattr(b, side).decode().astype(np.float64) for b in blocks)], axis=2
        )
        for side, x in (("key", k), ("value", v))
    }
    expected = attention(*(x.astype(np.float64) for x in (q, k, v)), **pasts, **attributes)[0]
    with np.errstate(over="ignore"):
        expected = expected.astype(dtype)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, expected)
    assert present == past + appended
    tokens = sum(block.length for block in blocks)
    assert paged_cache_length(past) == tokens
    assert paged_cache_length(present) == tokens + new_len
    new_blocks = validate(parse(present))[len(blocks) :]
    whole, rest = divmod(new_len, block_size)
    assert [b.length for b in new_blocks] == [block_size] * whole + [rest] * (rest > 0)
    assert all(b.key.shape[2] == b.length for b in new_blocks)
    np.testing.assert_array_equal(np.concatenate([b.key.decode() for b in new_blocks], axis=2), k.astype(np.float32))
    np.testing.assert_array_equal(np.concatenate([b.value.decode() for b in new_blocks], axis=2), v.astype(np.float32))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_pieces_of_a_sequence_are_the_sequence(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    q, k, v = new_tokens(rng, dtype, B=2, Hq=4, Hkv=2, S=23, D=8, Dv=6)
    whole = attention(q, k, v, is_causal=1, left_window_size=9)[0]
    past, begin = b"", 0
    for length in (1, 5, 1, 1, 9, 6):
        rows = slice(begin, begin + length)
        pieces = (np.ascontiguousarray(x[:, :, rows]) for x in (q, k, v))
        y, past, _ = paged_attention(*pieces, past, block_size=4, left_window_size=9)
        np.testing.assert_array_equal(y, whole[:, :, rows])
        begin += length
    assert [b.length for b in validate(parse(past))] == [1, 4, 1, 1, 1, 4, 4, 1, 4, 2]


@pytest.mark.parametrize("key_format", ALL_FORMATS)
@pytest.mark.parametrize("value_format", ALL_FORMATS)
def test_new_blocks_are_what_quantize_paged_cache_makes(key_format: str, value_format: str) -> None:
    rng = np.random.default_rng(2)
    q, k, v = new_tokens(rng, S=7)
    parameters = (scalar(0.4), zero_point(key_format, 1), scalar(0.7), zero_point(value_format, 1))
    y, _, appended = paged_attention(q, k, v, b"", *parameters, block_size=3)
    plain_y, _, plain = paged_attention(q, k, v, b"", block_size=3)
    assert appended == quantize_paged_cache(plain, np.arange(3), *parameters)
    np.testing.assert_array_equal(y, plain_y)  # the new tokens are attended as they came


def test_each_side_has_its_own_format() -> None:
    q, k, v = new_tokens(np.random.default_rng(3), np.float16)
    for sides, expected in (
        ({}, ("FLOAT16", "FLOAT16")),
        ({"key_scale": scalar(0.1), "key_zero_point": zero_point("INT4")}, ("INT4", "FLOAT16")),
        ({"value_scale": np.array([0.1], np.float32), "value_zero_point": zero_point("UINT2")}, ("FLOAT16", "UINT2")),
        ({"value_scale": scalar(9.0), "value_zero_point": zero_point("BFLOAT16")}, ("FLOAT16", "BFLOAT16")),
    ):
        block = validate(parse(paged_attention(q, k, v, b"", **sides)[2]))[0]
        assert (block.key.format.name, block.value.format.name) == expected


def test_bytes_of_a_new_block() -> None:
    """By hand: fields ascending, raw data, dims one by one, an explicit zero point."""
    q = np.zeros((1, 1, 1, 2), np.float32)
    k, v = np.array([[[[1.0, -2.0]]]], np.float32), np.array([[[[0.5, 1.0]]]], np.float32)
    past = PagedCacheProto()
    for start in range(2):
        block = past.blocks.add(start=start, length=1)
        block.key.CopyFrom(onnx.numpy_helper.from_array(k))
        block.value.CopyFrom(onnx.numpy_helper.from_array(v))
    _, _, appended = paged_attention(
        q, k, v, past.SerializeToString(), value_scale=scalar(0.5), value_zero_point=zero_point("UINT4", 3)
    )
    dims = bytes.fromhex("0801 0801 0801 0802")
    key = dims + bytes.fromhex("1001") + bytes.fromhex("4a08 0000803f 000000c0")
    scale = bytes.fromhex("1001 4a04 0000003f")
    zero = bytes.fromhex("1015 4a01 03")
    affine = bytes.fromhex("0815") + b"\x12" + bytes([len(scale)]) + scale + b"\x1a" + bytes([len(zero)]) + zero
    shape = bytes.fromhex("0a02 0801 0a02 0801 0a02 0801 0a02 0802")
    tensor_type = bytes.fromhex("0801") + b"\x12" + bytes([len(shape)]) + shape
    logical = b"\x0a" + bytes([len(tensor_type)]) + tensor_type
    value = b"\x0a" + bytes([len(affine)]) + affine + b"\x1a" + bytes([len(logical)]) + logical
    value += bytes.fromhex("2201 54")  # codes 4 and 5
    block_bytes = bytes.fromhex("0802 1001") + b"\x1a" + bytes([len(key)]) + key + b"\x32" + bytes([len(value)]) + value
    assert appended == b"\x0a" + bytes([len(block_bytes)]) + block_bytes


def test_unknown_fields_and_unused_rows_of_the_past_stay() -> None:
    q, k, v = new_tokens(np.random.default_rng(4))
    rows = np.full((1, 1, 3, 4), NAN, np.float32)
    rows[:, :, :2] = 1.0
    block = PagedCacheBlockProto(start=0, length=2)
    block.key.CopyFrom(onnx.numpy_helper.from_array(rows))
    block.value.CopyFrom(onnx.numpy_helper.from_array(rows))
    past = b"\x9a\x06\x01x" + PagedCacheProto(blocks=[block], name="n").SerializeToString()
    y, present, _ = paged_attention(q, k, v, past)
    assert present.startswith(past)
    ones = rows[:, :, :2]
    np.testing.assert_array_equal(y, attention(q, k, v, past_key=ones, past_value=ones, is_causal=1)[0])


def test_nan_in_queries_and_in_the_past_follows_ieee() -> None:
    q, k, v = new_tokens(np.random.default_rng(5), S=2)
    q[0, 0, 0, 0] = NAN
    assert np.isnan(paged_attention(q, k, v, b"")[0]).all(axis=-1)[0].tolist() == [[True, False], [False, False]]
    _, past, _ = paged_attention(*new_tokens(np.random.default_rng(6), S=2), b"")
    message = parse(past)
    values = np.ones((1, 1, 2, 4), np.float32)
    values[0, 0, 0, 1] = INF
    message.blocks[0].value.raw_data = values.tobytes()
    y = paged_attention(*new_tokens(np.random.default_rng(7)), message.SerializeToString())[0]
    assert (y[..., 1] == INF).all()
    assert np.isfinite(y[..., [0, 2, 3]]).all()


# What it refuses

Q, K, V = new_tokens(np.random.default_rng(8), B=2, Hq=4, Hkv=2, S=3, D=5, Dv=6)
_, PAST, _ = paged_attention(Q, K, V, b"", block_size=2)
INT4 = zero_point("INT4")


def changed(x: np.ndarray, value: float) -> np.ndarray:
    """With one element replaced."""
    x = x.copy()
    x[1, 1, 2, 3] = value
    return x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Q": Q.astype(np.float64)}, "type of input Q: expected float, float16 or bfloat16, got double"),
        ({"K": K.astype(np.float16)}, "type of input K: expected float like Q, got float16"),
        ({"V": V.astype(np.int8)}, "type of input V: expected float, float16 or bfloat16, got int8"),
        ({"Q": Q[0]}, r"input Q: expected rank 4, got shape \(4,3,5\)"),
        ({"Q": Q[:, :, :0], "K": K[:, :, :0], "V": V[:, :, :0]}, "input Q: expected at least one token"),
        ({"Q": Q[:, :, :2]}, "input K: expected the 2 tokens of Q"),
        ({"V": V[:, :, :2]}, "input V: expected the 3 tokens of Q"),
        ({"K": K[:1], "past": b""}, "batch of 'K': expected 2, got 1"),
        ({"K": K[..., :4], "past": b""}, "head size of 'K': expected 5, got 4"),
        ({"V": V[:, :1], "past": b""}, "heads of 'V': expected 2, got 1"),
        ({"Q": Q[:, :3]}, "query heads: expected a multiple of the 2 key/value heads, got 3"),
        ({"K": K[:1]}, r"input K: expected the batch of the past, 2, got shape \(1,2,3,5\)"),
        ({"K": K[:, :1]}, "input K: expected the heads of the past, 2"),
        ({"Q": Q[..., :4], "K": K[..., :4]}, "input K: expected the width of the past, 5"),
        ({"V": V[..., :4]}, "input V: expected the width of the past, 6"),
        ({"K": changed(K, NAN)}, r"input K: expected finite values, got nan at \(1,1,2,3\)"),
        ({"V": changed(V, -INF)}, r"input V: expected finite values, got -inf at \(1,1,2,3\)"),
        ({"past": b"\x0a"}, "input past: expected a serialized PagedCacheProto"),
        ({"past": np.zeros(3, np.int8)}, "input past: expected a rank-1 uint8 tensor"),
        ({"past": PAST + PAST}, "input past, block 2: expected start 3, the end of the block before, got 0"),
        ({"key_scale": scalar(1.0)}, "input key_zero_point: expected a scalar, as key_scale is given, got none"),
        ({"value_zero_point": INT4}, "input value_scale: expected a scalar, as value_zero_point is given, got none"),
        ({"key_scale": scalar(-1.0), "key_zero_point": INT4}, "input key_scale: expected a positive finite value"),
        ({"key_scale": scalar(1.0), "key_zero_point": np.array(1)}, "input key_zero_point: expected a scalar of type"),
        (
            {"V": changed(V, 1e5), "value_scale": scalar(1.0), "value_zero_point": zero_point("FLOAT16")},
            r"input V as FLOAT16: expected values in the range of FLOAT16, got 100000.0 at",
        ),
        ({"block_size": 0}, "attribute block_size: expected 1 or more, got 0"),
        ({"max_tokens": 5}, "inputs past and K: expected at most max_tokens 5 tokens, got 3 past and 3 new ones"),
        ({"left_window_size": -2}, "attribute 'left_window_size': expected -1 or more, got -2"),
        ({"scale": INF}, "attribute 'scale': expected a finite float, got inf"),
        ({"softcap": NAN}, "attribute 'softcap': expected a finite float, got nan"),
    ],
)
def test_errors(changes: dict[str, Any], message: str) -> None:
    arguments = {"Q": Q, "K": K, "V": V, "past": PAST, **changes}
    with pytest.raises(ValueError, match=rf"^ai\.rt::PagedAttention: {message}"):
        paged_attention(**arguments)


def test_limits_that_hold() -> None:
    for max_tokens in (6, 0, -1):
        assert paged_cache_length(paged_attention(Q, K, V, PAST, max_tokens=max_tokens)[1]) == 6


def test_length_of_a_broken_cache() -> None:
    assert paged_cache_length(b"") == 0
    with pytest.raises(CacheError, match=r"^ai\.rt::PagedCacheLength: input cache: expected a serialized"):
        paged_cache_length(b"\xff")


# In a model


def test_a_model_that_appends_twice() -> None:
    """Omitted inputs and outputs, both operators, attributes."""
    attributes = {"block_size": 2, "is_causal": 0, "scale": 0.5}
    nodes = [
        helper.make_node("PagedAttention", ["Q", "K", "V", "past", "", "", "s", "z"], ["Y1", "p1"], domain="ai.rt"),
        helper.make_node("PagedAttention", ["Q", "K", "V", "p1"], ["Y2", "", "a2"], domain="ai.rt", **attributes),
        helper.make_node("PagedCacheLength", ["p1"], ["n"], domain="ai.rt"),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("Q", "K", "V", "s")]
    infos.append(helper.make_tensor_value_info("past", TensorProto.UINT8, None))
    infos.append(helper.make_tensor_value_info("z", TensorProto.INT8, None))
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in ("Y1", "p1", "Y2", "a2", "n")
    ]
    imports = [helper.make_opsetid("", 22), helper.make_opsetid("ai.rt", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", infos, outputs), opset_imports=imports)
    feeds = {"Q": Q, "K": K, "V": V, "s": scalar(0.02), "z": zero_point("INT8", 5)}
    results = ReferenceEvaluator(model, new_ops=reference_ops).run(
        None, {**feeds, "past": np.frombuffer(PAST, np.uint8)}
    )
    y1, present1, _ = paged_attention(Q, K, V, PAST, value_scale=feeds["s"], value_zero_point=feeds["z"])
    y2, _, appended2 = paged_attention(Q, K, V, present1, **attributes)
    for got, expected in zip(results[:2] + results[2:4], (y1, present1, y2, appended2), strict=True):
        expected = np.frombuffer(expected, np.uint8) if isinstance(expected, bytes) else expected
        np.testing.assert_array_equal(got, expected)
    assert results[4].dtype == np.int64
    assert results[4].shape == ()
    assert results[4] == 6
    assert isinstance(parse(present1).blocks[-1].encoded_value, EncodedValueProto)
