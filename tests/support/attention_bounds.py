"""How far a kernel may be from the reference, element by element.

The bound follows a kernel's roundings through the operator. u is the unit roundoff of the arithmetic (2^-53 for double
queries, 2^-24 otherwise). Roundings in a sum of n terms go up and down: they are allowed to add up to 2 sqrt(n), many
times their standard deviation, and every other operation is allowed its worst case:

- score: (2 sqrt(D) + 4) u sum |q||k| |scale|, a dot product of D terms with a few roundings around it;
- softcap: the score's error (tanh is no steeper than 1) and 8 u softcap;
- bias: the sum is rounded once to the type it is added in, so the error is what rounding makes of score +- error.
  With a bias of -1e9 both ends round to one number and the error vanishes, as the operator wants it;
- weight exp(x - max): relative error exp(error of x) - 1, u |x - max| from the subtraction, 4 u for exp, and
  2 sqrt(T / 16) u for rescaling at each of T / 16 blocks;
- sums over T keys: (2 sqrt(T) + 4) u of the sum of magnitudes, in numerator and denominator;
- bfloat16 and float16 queries: half a step of the type for probabilities that are rounded to it before they meet V
  (float16 an eighth of it, as its products keep more);
- at last half a step of the output's type.

Nothing in it is tuned: a dropped key, a mask off by one, a wrong head or scale is off by far more than this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from onnx_ai_rt.reference.attention import Trace, add_bias, softmax
from onnx_ai_rt.reference.attention_layout import join_heads
from support.attention_calls import INTEGER_TYPES, AttentionCall

FLOAT, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
FLOAT_SMALLEST_NORMAL = 2.0**-126  # weights below may become 0
HALF_WEIGHTS = {np.dtype(ml_dtypes.bfloat16): 2.0**-8, np.dtype(np.float16): 2.0**-14}


@dataclass(frozen=True)
class Bounded:
    """Values in double and how far a kernel may be from each."""

    value: np.ndarray
    error: np.ndarray

    def excess(self, got: np.ndarray) -> np.ndarray:
        """|got - value| / error, at most 1 where right; inf where one is finite and the other not.

        Values that may round beyond the type's range are not judged.
        """
        limit = float(ml_dtypes.finfo(got.dtype).max)
        got = got.astype(np.float64)
        with np.errstate(all="ignore"):
            ratio = np.abs(got - self.value) / self.error
            ratio = np.where(got == self.value, 0.0, ratio)
            ratio = np.where(np.isnan(ratio), np.inf, ratio)
            both_infinite = ~np.isfinite(got) & ~np.isfinite(self.value) & (np.isnan(got) == np.isnan(self.value))
            unclear = np.isfinite(self.value) & ~(np.abs(self.value) + self.error < limit)
        return np.where(both_infinite | unclear, 0.0, ratio)


@dataclass(frozen=True)
class Bounds:
    """What a call may give."""

    output: Bounded  # Y in the call's rank
    scores: Bounded  # qk_matmul_output in the call's mode


def bounds(call: AttentionCall) -> list[Bounds]:
    """One entry for each way in which a kernel may understand the precision of the softmax; matching one is right.

    Where the bias is added in double but the queries are not double, or the mask has integers, x may reach the softmax
    as float or as double.
    """
    steps = call.trace
    query_type = call.inputs["Q"].dtype
    mask = call.inputs.get("attn_mask")
    sum_types = [steps.sum_type]
    in_double = call.attributes.get("softmax_precision") == 11
    if query_type != DOUBLE and mask is not None and (mask.dtype in INTEGER_TYPES or mask.dtype == DOUBLE):
        sum_types = [DOUBLE] if in_double and mask.dtype == DOUBLE else [FLOAT, DOUBLE]
    return [_bounds(call, steps, sum_type) for sum_type in sum_types]


def _bounds(call: AttentionCall, steps: Trace, sum_type: np.dtype[Any]) -> Bounds:
    query_type = call.inputs["Q"].dtype
    unit = 2.0**-52 if query_type == DOUBLE else 2.0**-24  # the reference itself is in double: half of 2^-52 is its own
    heads = steps.heads
    kv_len, head_size = heads.k.shape[2:]
    with np.errstate(all="ignore"):
        q, k, v = (np.abs(_finite(x)) for x in (heads.q, heads.k[:, heads.head_of_query], heads.v))
        v = v[:, heads.head_of_query]
        score_error = (2 * head_size**0.5 + 4) * unit * abs(heads.scale) * (q @ k.transpose(0, 1, 3, 2)) + 2.0**-140
        capped_error = score_error + 8 * unit * max(heads.softcap, 0.0)
        x, x_error = _biased(call, steps, sum_type, capped_error)
        takes_part = steps.takes_part
        probabilities = softmax(x, takes_part)
        largest = np.max(x, axis=-1, keepdims=True, initial=-np.inf, where=takes_part)
        relative = np.expm1(x_error) + unit * (np.abs(x - largest) + 4 + kv_len**0.5 / 2)
        relative = np.where(takes_part, np.nan_to_num(relative, nan=np.inf, posinf=np.inf), 0.0)
        weight_error = np.where(takes_part, probabilities * relative + FLOAT_SMALLEST_NORMAL, 0.0)
        sums = (2 * kv_len**0.5 + 4) * unit
        total_error = weight_error.sum(axis=-1, keepdims=True) + sums
        finite = np.nan_to_num(probabilities)
        output = steps.output if sum_type == steps.sum_type else _output(steps, probabilities)
        output_error = (
            np.nan_to_num(weight_error) @ v
            + (sums + HALF_WEIGHTS.get(query_type, 0.0)) * (finite @ v)
            + np.abs(output) * np.nan_to_num(total_error)
        )
        by_mode = (
            (steps.scores, score_error),
            (steps.capped, capped_error),
            (x, x_error),
            (probabilities, weight_error + probabilities * total_error),
        )
        scores, scores_error = by_mode[call.attributes.get("qk_matmul_output_mode", 0)]
    if heads.rank3:
        output, output_error = join_heads(output), join_heads(output_error)
    return Bounds(_rounded(output, output_error, query_type), _rounded(scores, scores_error, query_type))


def _finite(x: np.ndarray) -> np.ndarray:
    """In double, 0 for NaN and infinity: these have no error bound, and no influence where they are hidden."""
    x = x.astype(np.float64)
    return np.where(np.isfinite(x), x, 0.0)


def _biased(
    call: AttentionCall, steps: Trace, sum_type: np.dtype[Any], capped_error: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Score + bias as added in `sum_type`, and how far it may be off."""
    if "attn_mask" not in call.inputs:
        return steps.biased, np.where(steps.takes_part, capped_error, 0.0)
    below, x, above = (add_bias(steps.capped + e, steps.bias, sum_type) for e in (-capped_error, 0.0, capped_error))
    error = np.maximum(x - below, above - x)
    return np.where(steps.takes_part, x, -np.inf), np.where(steps.takes_part, error, 0.0)


def _output(steps: Trace, probabilities: np.ndarray) -> np.ndarray:
    """Probabilities times values; NaN and infinity of hidden values stay out."""
    heads = steps.heads
    v = heads.v.astype(np.float64)[:, heads.head_of_query]
    strange = ~np.isfinite(v).all(axis=-1)  # (B,Hq,T)
    output = probabilities @ np.where(strange[..., None], 0.0, v)
    for b, h in np.argwhere(strange.any(axis=-1)):
        for j in np.flatnonzero(strange[b, h]):
            rows = steps.takes_part[b, h, :, j]
            output[b, h, rows] += probabilities[b, h, rows, j][:, None] * v[b, h, j]
    return output


def _rounded(value: np.ndarray, error: np.ndarray, dtype: np.dtype[Any]) -> Bounded:
    """Adds the rounding to the output's type, and one percent for products of errors."""
    info = ml_dtypes.finfo(dtype)
    error = 1.01 * error
    # Types with float's exponents may flush what is below the smallest normal number.
    smallest = float(info.smallest_subnormal if dtype == np.float16 else info.smallest_normal)
    with np.errstate(all="ignore"):
        return Bounded(value, error + float(info.eps) / 2 * (np.abs(value) + error) + smallest)


def check(call: AttentionCall, got: dict[str, np.ndarray]) -> float:
    """Raises AssertionError unless every output in `got` is right; returns the largest share of the bound in use."""
    heads = call.trace.heads
    for name, present in (("present_key", heads.k), ("present_value", heads.v)):
        if name in got:
            assert got[name].dtype == present.dtype, f"{name} of {call}"
            assert got[name].shape == present.shape, f"{name} of {call}"
            assert got[name].tobytes() == np.ascontiguousarray(present).tobytes(), f"{name} of {call}"
    allowed = bounds(call)
    used = _check_numbers(call, "Y", got["Y"], [a.output for a in allowed])
    if "qk_matmul_output" in got:
        scores = _check_numbers(call, "qk_matmul_output", got["qk_matmul_output"], [a.scores for a in allowed])
        used = max(used, scores)
    return used


def _check_numbers(call: AttentionCall, name: str, got: np.ndarray, allowed: list[Bounded]) -> float:
    assert got.dtype == call.inputs["Q"].dtype, f"{name} of {call}"
    tries: list[tuple[float, str]] = []
    for bounded in allowed:
        assert got.shape == bounded.value.shape, f"{name} of {call}: shape {got.shape}, not {bounded.value.shape}"
        if got.size == 0:
            return 0.0
        excess = bounded.excess(got)
        worst = np.unravel_index(np.argmax(excess), excess.shape)
        text = (
            f"{name}{[int(i) for i in worst]} of {call}: got {float(got[worst])!r}, expected {bounded.value[worst]!r} "
            f"+- {bounded.error[worst]:.3g}; {int((excess > 1).sum())} of {got.size} elements are off"
        )
        tries.append((float(excess[worst]), text))
    used, text = min(tries)
    assert used <= 1.0, text
    return used
