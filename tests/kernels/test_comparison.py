"""The comparison with the reference refuses kernels that are wrong: each mistake is made once, on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.attention_bounds import check
from support.attention_calls import FLOAT_TYPES, AttentionCall, Geometry, make_call

NAN = float("nan")
Mistake = Callable[[AttentionCall], dict[str, Any]]
GEOMETRY = Geometry(B=2, Hq=4, Hkv=2, S=5, N=70, D=32, Dv=24)


def _attribute(name: str, value: Any) -> Mistake:
    return lambda call: {name: value}


def _input(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Mistake:
    return lambda call: {name: change(call.inputs[name])}


def _other_head_mapping(call: AttentionCall) -> dict[str, Any]:
    """Query head h uses h % Hkv: the reference on queries in that order."""
    return {"Q": call.inputs["Q"][:, [0, 2, 1, 3]]}


def _broadcast_short_mask(call: AttentionCall) -> dict[str, Any]:
    mask = call.inputs["attn_mask"]
    return {"attn_mask": np.broadcast_to(mask[..., -1:], (*mask.shape[:-1], GEOMETRY.T))}


# What the kernel takes instead of the truth, and the call that must show it.
MISTAKES: dict[str, tuple[dict[str, Any], Mistake]] = {
    "scale off by 1 %": ({"scale": 0.5}, _attribute("scale", 0.505)),
    "causal forgotten": ({"is_causal": 1}, _attribute("is_causal", 0)),
    "causal one key too far": ({"is_causal": 1}, lambda call: {"is_causal": 0, "right_window_size": 1}),
    "left window one key too wide": ({"left_window_size": 2}, _attribute("left_window_size", 3)),
    "right window one key too narrow": ({"right_window_size": 2}, _attribute("right_window_size", 1)),
    "softcap forgotten": ({"softcap": 3.0}, _attribute("softcap", 0.0)),
    "softcap after the bias": (
        {"softcap": 1.0, "attn_mask": np.full((5, 70), -3.0, np.float32) * (np.arange(70) % 2)},
        lambda call: {"attn_mask": np.tanh(call.inputs["attn_mask"])},
    ),
    "last key dropped": ({}, lambda call: {"attn_mask": np.arange(70) < 69}),
    "one key twice": ({}, lambda call: {"attn_mask": np.log(1.0 + (np.arange(70) == 64))}),
    "length one too long": ({"nonpad_kv_seqlen": np.array([64, 9])}, _input("nonpad_kv_seqlen", lambda n: n + 1)),
    "heads interleaved": ({}, _other_head_mapping),
    "mask of the wrong head": (
        {"attn_mask": np.random.default_rng(1).standard_normal((2, 4, 1, 70)).astype(np.float32)},
        _input("attn_mask", lambda mask: np.roll(mask, 1, axis=1)),
    ),
    "mask of the wrong row": (
        {"attn_mask": np.random.default_rng(1).random((5, 70)) < 0.5},
        _input("attn_mask", lambda mask: np.roll(mask, 1, axis=0)),
    ),
    "short mask broadcast": ({"attn_mask": np.ones((5, 1), bool)}, _broadcast_short_mask),
    "short mask padded with true": (
        {"attn_mask": np.ones((5, 60), bool)},
        lambda call: {"attn_mask": np.ones((5, 70), bool)},
    ),
    "one feature dropped": ({}, _input("Q", lambda q: q * (np.arange(32) != 31).astype(q.dtype))),
    "tile of keys swapped": ({}, _input("V", lambda v: v[:, :, [*range(16), 17, 16, *range(18, 70)]])),
}


@pytest.mark.parametrize("query_type", FLOAT_TYPES, ids=str)
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused(name: str, query_type: Any) -> None:
    arguments, mistake = MISTAKES[name]
    call = make_call(GEOMETRY, np.random.default_rng(0), query_type, **arguments)
    check(call, {"Y": call.oracle()[0]})
    with pytest.raises(AssertionError, match="elements are off"):
        check(call, {"Y": call.oracle(**mistake(call))[0]})


@pytest.mark.parametrize("query_type", FLOAT_TYPES, ids=str)
@pytest.mark.parametrize("mode", range(4))
def test_mistakes_in_scores_are_refused(mode: int, query_type: Any) -> None:
    mask = np.random.default_rng(1).choice([-np.inf, -1.0, 0.5], (5, 70)).astype(np.float32)
    changes = {"attn_mask": mask, "softcap": 1.0, "scale": 0.5, "qk_matmul_output_mode": mode}
    call = make_call(GEOMETRY, np.random.default_rng(0), query_type, **changes)
    y, _, _, right = call.oracle()
    check(call, {"Y": y, "qk_matmul_output": right})
    wrong = [call.oracle(qk_matmul_output_mode=other)[3] for other in range(4) if other != mode]
    for index in ((0, 0, 0, 0), (1, 3, 4, 69)):
        for factor in (1.0 + 6 * float(ml_dtypes.finfo(query_type).eps), NAN):
            changed = right.copy()
            value = float(changed[index]) if np.isfinite(changed[index]) else -1e4
            changed[index] = max(abs(value), 0.1) * factor
            wrong.append(changed)
    for scores in wrong:
        with pytest.raises(AssertionError, match="elements are off"):
            check(call, {"Y": y, "qk_matmul_output": scores})


def test_low_precision_inside_is_refused() -> None:
    """Float results from scores, weights or values that were rounded to a half type on the way."""
    call = make_call(GEOMETRY, np.random.default_rng(0))
    check(call, {"Y": call.oracle()[0]})
    for dtype in (ml_dtypes.bfloat16, np.float16):
        for name in "QKV":
            y = call.oracle(**{name: call.inputs[name].astype(dtype).astype(np.float32)})[0]
            with pytest.raises(AssertionError, match="elements are off"):
                check(call, {"Y": y})


def test_single_elements_are_judged() -> None:
    call = make_call(GEOMETRY, np.random.default_rng(0))
    for value in (NAN, 0.0, float("inf")):
        y = call.oracle()[0]
        y[1, 3, 4, 23] = value
        with pytest.raises(AssertionError, match=r"^Y\[1, 3, 4, 23\] of"):
            check(call, {"Y": y})


def test_present_is_compared_bit_for_bit() -> None:
    call = make_call(Geometry(S=2, L=3, N=2), np.random.default_rng(0))
    y, key, value, _ = call.oracle()
    check(call, {"Y": y, "present_key": key, "present_value": value})
    wrong = value.copy()
    wrong[0, 0, 2, 1] = np.nextafter(wrong[0, 0, 2, 1], 1)
    with pytest.raises(AssertionError, match="present_value"):
        check(call, {"Y": y, "present_value": wrong})
