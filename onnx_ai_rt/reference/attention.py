"""Attention in plain numpy and double precision: slow, simple, and the judge of the kernels.

It follows the operator's rules literally: all scores of all heads at once, one mask of the keys that take part, and one
loop over the query rows. Everything is computed in double from the exact values of the inputs; only the sum of score
and bias is rounded to the type that the operator adds them in, because with a bias of -1e9 that rounding is the result.

Letters: B batch, Hq query heads, Hkv key/value heads, S query tokens, L past tokens, N new key tokens, T = L + N,
D head size of Q and K, Dv head size of V.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_ai_rt.reference.attention_layout import (
    FLOAT_TYPES,
    INTEGER_TYPES,
    Heads,
    check_heads,
    fail,
    join_heads,
    shape_text,
    type_name,
)


@dataclass(frozen=True)
class Trace:
    """Every step of one call, in double unless said otherwise; scores are (B,Hq,S,T)."""

    heads: Heads
    scores: np.ndarray  # scaled dot products
    capped: np.ndarray  # after softcap
    bias: np.ndarray  # 0 without mask, -inf where the mask hides; broadcastable to (B,Hq,S,T)
    sum_type: np.dtype[Any]  # float or double: what score and bias are added in
    takes_part: np.ndarray  # bool: the key is visible and its bias is neither false nor -inf
    biased: np.ndarray  # score + bias, rounded to sum_type, clamped; -inf where the key takes no part
    probabilities: np.ndarray  # 0 where the key takes no part
    output: np.ndarray  # (B,Hq,S,Dv)


def attention(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    attn_mask: np.ndarray | None = None,
    past_key: np.ndarray | None = None,
    past_value: np.ndarray | None = None,
    nonpad_kv_seqlen: np.ndarray | None = None,
    *,
    scale: float | None = None,
    is_causal: int = 0,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    qk_matmul_output_mode: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
    rounded: bool = True,
    op_name: str = "Attention",
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """ONNX Attention (the union of opsets 23, 24 and 25).

    Args:
        Q: (B,Hq,S,D) or (B,S,Hq*D), of float, float16, bfloat16 (ml_dtypes) or double.
        K: (B,Hkv,N,D) or (B,N,Hkv*D), of Q's type.
        V: (B,Hkv,N,Dv) or (B,N,Hkv*Dv), of any of the four types.
        attn_mask: bool, float or integer, rank 0 to 4, right-aligned against (B,Hq,S,T); a last dimension shorter
            than T is padded with "does not attend".
        past_key: (B,Hkv,L,D) of K's type, together with past_value.
        past_value: (B,Hkv,L,Dv) of V's type.
        nonpad_kv_seqlen: int64 (B) or (B,1), each in 0..T.
        scale: any finite float; 1/sqrt(D) when None.
        is_causal: not 0: key j is hidden from query row i unless j <= i + offset.
        q_num_heads: Hq; required with rank 3.
        kv_num_heads: Hkv; required with rank 3.
        softcap: > 0: scores become softcap * tanh(score / softcap).
        softmax_precision: an onnx.TensorProto.DataType; it changes nothing here, where all is double.
        qk_matmul_output_mode: 0 scaled dot products, 1 after softcap, 2 after softcap and bias, 3 probabilities.
        left_window_size: >= 0: keys further than this before i + offset are hidden.
        right_window_size: >= 0: keys further than this behind i + offset are hidden.
        rounded: False returns Y and the scores as the doubles that were computed.
        op_name: the operator's name in error messages.

    Returns:
        Y in Q's rank and type, present_key (B,Hkv,T,D), present_value (B,Hkv,T,Dv), qk_matmul_output (B,Hq,S,T) in
        Q's type.

    Raises:
        ValueError: one sentence that names operator, input, expected and got.
    """
    steps = trace(
        Q,
        K,
        V,
        attn_mask,
        past_key,
        past_value,
        nonpad_kv_seqlen,
        scale=scale,
        is_causal=is_causal,
        q_num_heads=q_num_heads,
        kv_num_heads=kv_num_heads,
        softcap=softcap,
        left_window_size=left_window_size,
        right_window_size=right_window_size,
        op_name=op_name,
    )
    if qk_matmul_output_mode not in (0, 1, 2, 3):
        fail(op_name, "attribute 'qk_matmul_output_mode'", "0, 1, 2 or 3", str(qk_matmul_output_mode))
    by_mode = (steps.scores, steps.capped, steps.biased, steps.probabilities)
    qk_matmul_output = by_mode[qk_matmul_output_mode]
    output = join_heads(steps.output) if steps.heads.rank3 else steps.output
    if rounded:
        with np.errstate(over="ignore"):
            output, qk_matmul_output = output.astype(Q.dtype), qk_matmul_output.astype(Q.dtype)
    return output, steps.heads.k, steps.heads.v, qk_matmul_output


def trace(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    attn_mask: np.ndarray | None = None,
    past_key: np.ndarray | None = None,
    past_value: np.ndarray | None = None,
    nonpad_kv_seqlen: np.ndarray | None = None,
    *,
    scale: float | None = None,
    is_causal: int = 0,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    softcap: float = 0.0,
    left_window_size: int = -1,
    right_window_size: int = -1,
    op_name: str = "Attention",
) -> Trace:
    """The steps of `attention`, for its arguments. Raises ValueError like it."""
    heads = check_heads(
        op_name,
        Q,
        K,
        V,
        past_key,
        past_value,
        scale=scale,
        softcap=softcap,
        q_num_heads=q_num_heads,
        kv_num_heads=kv_num_heads,
    )
    visible = visible_keys(op_name, heads, nonpad_kv_seqlen, is_causal, left_window_size, right_window_size)
    bias = mask_bias(op_name, attn_mask, heads.score_shape)
    sum_type = _sum_type(Q.dtype, None if attn_mask is None else attn_mask.dtype)
    with np.errstate(all="ignore"):
        scores = _scores(heads)
        capped = heads.softcap * np.tanh(scores / heads.softcap) if heads.softcap > 0 else scores
        takes_part = np.broadcast_to(visible & ~np.isneginf(bias), heads.score_shape)
        biased = capped if attn_mask is None else add_bias(capped, bias, sum_type)
        biased = np.where(takes_part, biased, -np.inf)
        probabilities = softmax(biased, takes_part)
        output = _weighted_values(heads, probabilities, takes_part)
    return Trace(heads, scores, capped, bias, sum_type, takes_part, biased, probabilities, output)


def _scores(heads: Heads) -> np.ndarray:
    """(B,Hq,S,T): (q . k) * scale; 0 where D = 0."""
    k = heads.k.astype(np.float64)[:, heads.head_of_query]
    return (heads.q.astype(np.float64) @ k.transpose(0, 1, 3, 2)) * heads.scale


def visible_keys(
    op_name: str,
    heads: Heads,
    nonpad_kv_seqlen: np.ndarray | None,
    is_causal: int,
    left_window_size: int,
    right_window_size: int,
) -> np.ndarray:
    """(B,1,S,T) bool: what is_causal, the windows and nonpad_kv_seqlen let a query row see. Raises ValueError."""
    batch, _, q_len, kv_len = heads.score_shape
    for name, size in (("left_window_size", left_window_size), ("right_window_size", right_window_size)):
        if size < -1:
            fail(op_name, f"attribute '{name}'", "-1 or more", str(size))
    valid = np.full(batch, kv_len, dtype=np.int64)
    offset = np.zeros(batch, dtype=np.int64)
    if heads.past_len is not None:
        offset[:] = heads.past_len
    if nonpad_kv_seqlen is not None:
        valid = _checked_lengths(op_name, nonpad_kv_seqlen, batch, kv_len, heads.past_len is not None)
        offset = valid - q_len
    key = np.arange(kv_len)
    position = (np.arange(q_len) + offset[:, None])[:, None, :, None]  # of each query row among the keys
    visible = np.broadcast_to(key < valid[:, None, None, None], (batch, 1, q_len, kv_len))
    if is_causal:
        visible = visible & (key <= position)
    if left_window_size >= 0:
        visible = visible & (key >= position - left_window_size)
    if right_window_size >= 0:
        visible = visible & (key <= position + right_window_size)
    return visible


def _checked_lengths(op_name: str, lengths: np.ndarray, batch: int, kv_len: int, with_past: bool) -> np.ndarray:
    """nonpad_kv_seqlen as (B)."""
    what = "'nonpad_kv_seqlen'"
    if with_past:
        fail(op_name, what, "no such input together with 'past_key' and 'past_value'", "both")
    if lengths.dtype != np.int64:
        fail(op_name, f"type of {what}", "int64", type_name(lengths.dtype))
    if lengths.shape not in ((batch,), (batch, 1)):
        fail(op_name, f"shape of {what}", f"({batch}) or ({batch},1)", shape_text(lengths.shape))
    lengths = lengths.reshape(batch)
    for index, value in enumerate(lengths.tolist()):
        if not 0 <= value <= kv_len:
            fail(op_name, f"{what}[{index}]", f"0 to {kv_len}, the number of keys", str(value))
    return lengths


def mask_bias(op_name: str, mask: np.ndarray | None, score_shape: tuple[int, ...]) -> np.ndarray:
    """The mask as a bias in double, broadcastable to (B,Hq,S,T); -inf does not attend. Raises ValueError."""
    if mask is None:
        return np.zeros(())
    is_number = mask.dtype in FLOAT_TYPES or mask.dtype in INTEGER_TYPES
    if mask.dtype != np.bool_ and not is_number:
        fail(op_name, "type of 'attn_mask'", "bool, a float type or an integer type", type_name(mask.dtype))
    kv_len = score_shape[-1]
    if mask.ndim > 4:
        fail(op_name, "rank of 'attn_mask'", "0 to 4", f"{mask.ndim} (shape {shape_text(mask.shape)})")
    for axis in range(-mask.ndim, -1):
        if mask.shape[axis] not in (1, score_shape[axis]):
            fail(
                op_name,
                f"dimension {axis + mask.ndim} of 'attn_mask'",
                " or ".join(str(n) for n in sorted({1, score_shape[axis]})),
                f"{mask.shape[axis]} (shape {shape_text(mask.shape)})",
            )
    if mask.ndim and mask.shape[-1] > kv_len and not (kv_len == 0 and mask.shape[-1] == 1):
        got = f"{mask.shape[-1]} (shape {shape_text(mask.shape)})"
        fail(op_name, "last dimension of 'attn_mask'", f"at most {kv_len}, the number of keys", got)
    bias = np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else mask.astype(np.float64)
    if mask.ndim and kv_len and mask.shape[-1] < kv_len:
        missing = np.full((*mask.shape[:-1], kv_len - mask.shape[-1]), -np.inf)
        bias = np.concatenate([bias, missing], axis=-1)
    return bias


def _sum_type(query_type: np.dtype[Any], mask_type: np.dtype[Any] | None) -> np.dtype[Any]:
    """The widest of float, Q's type and the mask's; an integer or bool mask is as wide as float."""
    return np.dtype(np.float64 if np.float64 in (query_type, mask_type) else np.float32)


def add_bias(scores: np.ndarray, bias: np.ndarray, sum_type: np.dtype[Any]) -> np.ndarray:
    """scores + bias in `sum_type`, as doubles; a finite sum beyond its range is clamped to it."""
    largest = float(np.finfo(sum_type).max)
    total = scores + bias
    both_finite = np.isfinite(scores) & np.isfinite(bias)
    total = np.where(both_finite, np.clip(total, -largest, largest), total)
    rounded: np.ndarray = total.astype(sum_type).astype(np.float64)
    return rounded


def softmax(x: np.ndarray, takes_part: np.ndarray) -> np.ndarray:
    """Softmax over the last axis among the keys that take part; 0 elsewhere.

    A row of keys that take part with scores of NaN, of -inf alone, or of +inf gives NaN throughout: IEEE's inf - inf.
    """
    largest = np.max(x, axis=-1, keepdims=True, initial=-np.inf, where=takes_part)
    weights = np.where(takes_part, np.exp(x - largest), 0.0)
    total = np.sum(weights, axis=-1, keepdims=True)
    return np.where(takes_part | np.isnan(total), weights / total, 0.0)


def _weighted_values(heads: Heads, probabilities: np.ndarray, takes_part: np.ndarray) -> np.ndarray:
    """(B,Hq,S,Dv): row by row, so that the values of a key that takes no part are not even read."""
    v = heads.v.astype(np.float64)
    batch, q_heads, q_len, _ = probabilities.shape
    output = np.zeros((batch, q_heads, q_len, v.shape[3]))
    for b, h, i in np.ndindex(batch, q_heads, q_len):
        keys = takes_part[b, h, i]
        output[b, h, i] = probabilities[b, h, i, keys] @ v[b, heads.head_of_query[h], keys]
    return output
