"""Converted decoders give what they gave before, in every style that exporters use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from rewrite.decoders import HIDDEN, KV_HEADS, decoder
from rewrite.running import run_dense, run_paged, steps

import onnx_ai_rt

SMALL_MODEL = Path(__file__).parents[2] / "examples" / "data" / "tiny_pycode_lm.onnx"

STYLES = {
    "concat": {"style": "concat"},
    "concat, rank 3": {"style": "concat", "rank": 3},
    "concat, heads repeated": {"style": "concat", "repeat": True},
    "concat, whole shape": {"style": "concat", "lengths_from": "whole"},
    "concat, unnamed sizes": {"style": "concat", "named": False},
    "concat, ai.rt": {"style": "concat", "domain": "ai.rt"},
    "inside": {"style": "inside"},
    "inside, rank 3": {"style": "inside", "rank": 3},
    "inside, causal without a mask": {"style": "inside", "mask": "none", "attributes": "is_causal=1"},
    "inside, causal with a mask": {"style": "inside", "attributes": "is_causal=1"},
    "inside, window": {"style": "inside", "mask": "none", "attributes": "is_causal=1, left_window_size=2"},
    "inside, right window 0": {"style": "inside", "mask": "none", "attributes": "right_window_size=0"},
    "inside, not causal": {"style": "inside", "mask": "none"},
    "inside, scale and softcap": {"style": "inside", "attributes": "scale=0.7, softcap=2.0"},
}
GOOD_MASKS = (
    "bool", "not greater", "batch and head axes", "infinite bias", "finite bias", "trilu", "buffer", "window",
    "wide window",
)  # fmt: skip


def check_same(model: onnx.ModelProto, batch: int = 2, tolerance: float = 1e-5, **options: object) -> None:
    paged = onnx_ai_rt.to_paged(model, **options)
    assert not paged.left, str(paged)
    onnx_ai_rt.register_schemas()
    onnx.checker.check_model(paged.model, full_check=True)
    assert not any("past_key" in value.name or "past_value" in value.name for value in paged.model.graph.input)
    assert not any(node.op_type == "Attention" for node in paged.model.graph.node)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    xs = steps(batch, HIDDEN, dtype)
    for before, after in zip(run_dense(model, xs), run_paged(paged, xs), strict=True):
        np.testing.assert_allclose(after.astype(float), before.astype(float), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES.keys())
def test_styles(style: dict) -> None:
    check_same(decoder(**style))


@pytest.mark.parametrize("outputs", ["appended", "present", "both"])
def test_outputs(outputs: str) -> None:
    model = decoder()
    check_same(model, outputs=outputs, block_size=2)
    names = [value.name for value in onnx_ai_rt.to_paged(model, outputs=outputs).model.graph.output]
    one = {"appended": ["appended_{}"], "present": ["present_{}"], "both": ["appended_{}", "present_{}"]}[outputs]
    assert names == ["y", *(name.format(i) for i in range(2) for name in one)]


@pytest.mark.parametrize("style", ["concat", "inside"])
@pytest.mark.parametrize("mask", GOOD_MASKS)
def test_masks(mask: str, style: str) -> None:
    model = decoder(style, mask=mask)
    check_same(model)
    paged = onnx_ai_rt.to_paged(model)
    made = {node.op_type for node in paged.model.graph.node}
    assert not made & {"LessOrEqual", "Greater", "Trilu", "Where"}, "the mask's nodes are still there"


def test_a_padding_mask_without_padding() -> None:
    """The model is converted for that case, and needs the mask no more."""
    model = decoder(mask="data")
    assert not onnx_ai_rt.to_paged(model).changed
    paged = onnx_ai_rt.to_paged(model, ones=["attention_mask"])
    assert not paged.left
    assert [value.name for value in paged.model.graph.input] == ["x", "cache_0", "cache_1"]
    xs = steps(2, HIDDEN)
    for expected, after in zip(run_paged(onnx_ai_rt.to_paged(decoder()), xs), run_paged(paged, xs), strict=True):
        np.testing.assert_array_equal(after, expected)
    with pytest.raises(ValueError, match="ones: expected names of the model's inputs, got mask"):
        onnx_ai_rt.to_paged(model, ones=["mask"])


def test_windows_become_an_attribute() -> None:
    for mask, window in (("bool", -1), ("window", 3), ("wide window", 299)):
        paged = onnx_ai_rt.to_paged(decoder(mask=mask))
        nodes = [node for node in paged.model.graph.node if node.op_type == "PagedAttention"]
        for node in nodes:
            options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            assert (options["is_causal"], options["left_window_size"]) == (1, window)
    narrower = onnx_ai_rt.to_paged(decoder(mask="window"), left_window_size=1, max_tokens=99, block_size=4)
    node = next(node for node in narrower.model.graph.node if node.op_type == "PagedAttention")
    options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert (options["left_window_size"], options["max_tokens"], options["block_size"]) == (1, 99, 4)


def test_finite_bias_is_reported() -> None:
    paged = onnx_ai_rt.to_paged(decoder(mask="finite bias"))
    assert paged.changed[0].reasons == ("its mask adds -10000 instead of -inf to hide a key",)


@pytest.mark.parametrize("elem", ["float16", "bfloat16"])
def test_half_precision(elem: str) -> None:
    check_same(decoder("inside", elem=elem), tolerance=2e-2 if elem == "float16" else 1e-1)


def test_length_of_present() -> None:
    """A size taken from present, here the total for positions, comes from the cache and the new tokens."""

    def use_present(text: str) -> str:
        return text.replace(
            "y = Identity(hidden_1)",
            """whole = Shape(present_value_1)
            at = Constant<value_int=2>()
            size = Gather<axis=0>(whole, at)
            number = Cast<to=1>(size)
            part = Mul(number, tenth)
            y = Add(hidden_1, part)""",
        )

    check_same(decoder(change=use_present))
    check_same(decoder("inside", change=use_present))
    check_same(decoder("inside", rank=3, change=lambda text: use_present(text)), block_size=3)


def test_quantized_pages() -> None:
    model = decoder()
    paged = onnx_ai_rt.to_paged(
        model, key_format="INT8", key_scale=0.05, value_format="UINT4", value_scale=[0.5, 0.4], value_zero_point=8
    )
    values = {t.name: onnx.numpy_helper.to_array(t) for t in paged.model.graph.initializer}
    assert values["key_scale_1"] == np.float32(0.05)
    assert values["key_zero_point_0"].dtype == np.int8
    assert values["value_scale_1"] == np.float32(0.4)
    assert int(values["value_zero_point_0"]) == 8
    xs = steps(1, HIDDEN)
    for before, after in zip(run_dense(model, xs), run_paged(paged, xs), strict=True):
        assert 0 < np.abs(after - before).max() < 1


def test_scales_as_inputs() -> None:
    paged = onnx_ai_rt.to_paged(decoder(), key_format="INT8", value_format="FLOAT16")
    inputs = {value.name: value.type.tensor_type for value in paged.model.graph.input}
    assert inputs["key_scale_0"].elem_type == onnx.TensorProto.FLOAT
    assert inputs["key_zero_point_1"].elem_type == onnx.TensorProto.INT8
    assert not any(name.startswith("value_") for name in inputs)
    session = ReferenceEvaluator(paged.model, new_ops=onnx_ai_rt.reference_ops)
    feeds = {f"cache_{i}": np.zeros(0, np.uint8) for i in range(2)}
    feeds |= {f"key_scale_{i}": np.float32(0.1) for i in range(2)} | {
        f"key_zero_point_{i}": np.int8(0) for i in range(2)
    }
    _, appended, _ = session.run(None, {"x": steps(1, HIDDEN)[0], **feeds})
    block = onnx_ai_rt.PagedCacheProto.FromString(appended.tobytes()).blocks[0]
    assert block.encoded_key.affine.storage_type == onnx.TensorProto.INT8
    assert block.value.data_type == onnx.TensorProto.FLOAT16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": "all"}, "outputs: expected one of appended, present, both, got 'all'"),
        ({"block_size": 0}, "block_size: expected 1 or more, got 0"),
        ({"max_tokens": -1}, "max_tokens: expected 0 or more, got -1"),
        ({"left_window_size": -2}, "left_window_size: expected -1 or more, got -2"),
        ({"key_format": "INT3"}, "key_format: expected one of FLOAT, .*, got 'INT3'"),
        ({"key_scale": 1.0}, "key_scale needs key_format"),
        ({"value_format": "INT8", "value_zero_point": 1}, "value_zero_point needs value_scale"),
        ({"key_format": "INT8", "key_scale": [1.0]}, "key_scale: expected one value or 2, one a .* got 1"),
        ({"key_format": "INT8", "key_scale": 0.0}, "key_scale: expected a positive finite float, got 0"),
        ({"key_format": "INT4", "key_scale": 1.0, "key_zero_point": 8}, "expected -8 to 7 for INT4, got 8"),
    ],
)  # fmt: skip
def test_wrong_arguments(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        onnx_ai_rt.to_paged(decoder(), **options)


def test_small_model() -> None:
    """The exported language model: all layers convert, and greedy decoding gives the same tokens."""
    model = onnx.load(SMALL_MODEL)
    paged = onnx_ai_rt.to_paged(model)
    assert len(paged.changed) == 4
    assert not paged.left
    assert not {node.op_type for node in paged.model.graph.node} & {"Attention", "LessOrEqual"}
    before = ReferenceEvaluator(model, new_ops=onnx_ai_rt.reference_ops)
    after = ReferenceEvaluator(paged.model, new_ops=onnx_ai_rt.reference_ops)
    dense = {v.name: np.zeros((1, KV_HEADS, 0, 32), np.float32) for v in model.graph.input if "past" in v.name}
    caches = {names.past: np.zeros(0, np.uint8) for names in paged.caches}
    tokens = np.array([list(b"def __init__(self, ")])
    for _ in range(5):
        expected, *present = before.run(None, {"input_ids": tokens, **dense})
        logits, *appended = after.run(None, {"input_ids": tokens, **caches})
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
        dense = dict(zip(dense, present, strict=True))
        caches = {name: np.concatenate([caches[name], new]) for name, new in zip(caches, appended, strict=True)}
        tokens = expected[:, -1:].argmax(-1)
