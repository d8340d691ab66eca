"""The reference against onnx's ReferenceEvaluator, on the inputs that it gets right.

It fails on, or differs for: rank-0 masks, short integer masks, integer masks with is_causal, masks without the query
dimension (or with 1 there) with is_causal, T = 0, head attributes with rank 4, scale <= 0, mode 0 with softcap (it
gives mode 1), and NaN or infinity in hidden keys.
test_attention_rules.py has these.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from support.attention_calls import FLOAT_TYPES, INTEGER_TYPES, AttentionCall, Menu, attention_calls
from support.onnx_models import ATTENTION_OUTPUTS, attention_model
from support.onnx_node_cases import NO_JUDGE, ONNX_IS_JUDGE

pytestmark = pytest.mark.skipif(not ONNX_IS_JUDGE, reason=NO_JUDGE)
NEWEST_OPSET = min(onnx.defs.onnx_opset_version(), 25)
WIDE = (np.dtype(np.float32), np.dtype(np.float64))
HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def menu(**changes: Any) -> Menu:
    """What ReferenceEvaluator understands."""
    common: dict[str, Any] = {
        "mask_ranks": (1, 2, 2, 3, 4),
        "scales": (None, None, 0.25, 1.0),  # the evaluator takes the root of a given scale in float
        "poisons": (None,),
        "windows": NEWEST_OPSET >= 25,
        "most_work": 1 << 18,
    }
    return Menu(**{**common, **changes})


def lowest_opset(call: AttentionCall) -> int:
    """The opset that introduced what the call uses. Earlier ones align causal masks differently with nonpad."""
    if any(call.attributes.get(name, -1) != -1 for name in ("left_window_size", "right_window_size")):
        return 25
    return 24 if "nonpad_kv_seqlen" in call.inputs else 23


def understood(call: AttentionCall) -> bool:
    """Whether ReferenceEvaluator gets the call right, apart from what the menu leaves out."""
    mask = call.inputs.get("attn_mask")
    attributes = call.attributes
    if mask is not None and mask.dtype in INTEGER_TYPES:
        kv_len = call.oracle()[1].shape[2]
        if attributes.get("is_causal") or mask.shape[-1] < kv_len:
            return False
    windows = max(attributes.get("left_window_size", -1), attributes.get("right_window_size", -1))
    if mask is not None and attributes.get("is_causal") and windows < 0:
        q_len = call.inputs["Q"].shape[-2]
        if mask.ndim < 2 or mask.shape[-2] != q_len:
            return False
    return not (attributes["qk_matmul_output_mode"] == 0 and attributes["softcap"] > 0)


def rounding_beside_the_mask(call: AttentionCall) -> float:
    """How far a score may move when it is added in float to the lowest values of float16, tens of thousands.

    Those of the wider types are so far away that the sum is the mask's value, whatever the score.
    """
    mask = call.inputs.get("attn_mask")
    if mask is None or mask.dtype != np.float16:
        return 0.0
    return (
        4
        * float(np.finfo(np.float32).eps)
        * float(np.abs(mask, where=np.isfinite(mask), out=np.zeros_like(mask)).max(initial=0))
    )


def judge(call: AttentionCall, opset: int, rtol: float, atol: float) -> None:
    """Runs both and compares all four outputs."""
    model = attention_model(call.inputs, call.attributes, opset=opset)
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(model).run(None, call.inputs)
    got = call.oracle()
    for name, e, g in zip(ATTENTION_OUTPUTS, expected, got, strict=True):
        assert g.shape == e.shape, name
        assert g.dtype == call.inputs["V" if name == "present_value" else "Q"].dtype, name
        if name.startswith("present"):
            assert g.tobytes() == np.ascontiguousarray(e).tobytes(), name
        else:
            g, e = np.float64(g), np.float64(e)
            np.testing.assert_allclose(g, e, rtol=rtol, atol=atol, err_msg=f"{name} of {call}")


@settings(max_examples=300)
@given(attention_calls(menu(query_types=WIDE, value_types=WIDE, precisions=(None, 11))), st.sampled_from((23, 24, 25)))
def test_float_and_double(call: AttentionCall, opset: int) -> None:
    assume(understood(call))
    opset = min(max(opset, lowest_opset(call)), NEWEST_OPSET)
    # The evaluator works in Q's type with D, T of 32 and less: a few dozen roundings of values of about 1.
    if call.inputs["Q"].dtype == np.float64:
        judge(call, opset, 1e-10, 1e-11)
    else:
        coarse = rounding_beside_the_mask(call)
        judge(call, opset, max(1e-4, coarse), max(2e-5, coarse))


@settings(max_examples=150)
@given(
    attention_calls(
        menu(
            query_types=HALF,
            value_types=None,
            mask_types=(None, np.dtype(np.bool_)),
            precisions=(None, 1, 11),
            softcaps=(0.0, 20.0),
            head_sizes=(1, 3, 8, 16),
        )
    )
)
def test_half_types(call: AttentionCall) -> None:
    assume(understood(call))
    # The evaluator rounds every step to the half type: scores up to about 8 are off by up to 8 * eps each.
    tolerance = 0.02 if call.inputs["Q"].dtype == np.float16 else 0.15
    judge(call, max(23, lowest_opset(call)), tolerance, tolerance)


@settings(max_examples=100)
@given(attention_calls(menu(query_types=WIDE, value_types=FLOAT_TYPES, mask_types=(None,), precisions=(None,))))
def test_values_of_another_type(call: AttentionCall) -> None:
    assume(understood(call))
    judge(call, max(23, lowest_opset(call)), 1e-4, 2e-5)


@pytest.mark.parametrize("opset", [o for o in (23, 24, 25) if o <= NEWEST_OPSET])
def test_plain_call_at_each_opset(opset: int) -> None:
    rng = np.random.default_rng(1)
    shapes = {"Q": (2, 4, 3, 8), "K": (2, 2, 5, 8), "V": (2, 2, 5, 6)}
    call = AttentionCall(
        {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()},
        {"is_causal": 1, "softcap": 0.0, "qk_matmul_output_mode": 3},
    )
    judge(call, opset, 1e-5, 1e-6)
