"""Shapes and types of one Attention call, checked: the part of the reference that holds no arithmetic.

Letters: B batch, Hq query heads, Hkv key/value heads, S query tokens, L past tokens, N new key tokens, T = L + N,
D head size of Q and K, Dv head size of V.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

FLOAT_TYPES: tuple[np.dtype[Any], ...] = (
    np.dtype(np.float32),
    np.dtype(np.float16),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(np.float64),
)
INTEGER_TYPES: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(t)
    for t in (
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
        *(ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2),
    )
)
FLOAT_TYPE_NAMES = "float, float16, bfloat16 or double"
_NAMES = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


def type_name(dtype: Any) -> str:
    """The element type as ONNX spells it ("float", "double", "bfloat16", "int64", ...)."""
    dtype = np.dtype(dtype)
    return _NAMES.get(dtype, str(dtype.name))


def shape_text(shape: tuple[int, ...]) -> str:
    """ "(2,3,4)"; "()" for a scalar."""
    return "(" + ",".join(str(n) for n in shape) + ")"


def fail(op_name: str, what: str, expected: str, got: str) -> NoReturn:
    """Raises ValueError with one sentence that names operator, input or attribute, what was expected and what came."""
    raise ValueError(f"{op_name}: {what}: expected {expected}, got {got}")


@dataclass(frozen=True)
class Heads:
    """Checked inputs of one call. Arrays keep their types; q, k, v are (B,H,seq,D) whatever rank came in."""

    q: np.ndarray  # (B,Hq,S,D)
    k: np.ndarray  # (B,Hkv,T,D): past and new keys
    v: np.ndarray  # (B,Hkv,T,Dv)
    rank3: bool  # Q, K, V came as (B,seq,H*D), and so goes Y
    past_len: int | None  # L, or None without past
    scale: float
    softcap: float

    @property
    def score_shape(self) -> tuple[int, int, int, int]:
        """(B,Hq,S,T)."""
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    def head_of_query(self) -> np.ndarray:
        """(Hq,) int: the key/value head that each query head reads."""
        group = self.q.shape[1] // self.k.shape[1]
        head: np.ndarray = np.arange(self.q.shape[1]) // group
        return head


def split_heads(op_name: str, name: str, x: np.ndarray, heads: int) -> np.ndarray:
    """(B,seq,H*D) -> (B,H,seq,D)."""
    batch, seq, hidden = x.shape
    if hidden % heads:
        fail(op_name, f"last dimension of '{name}'", f"a multiple of {heads} heads", str(hidden))
    split: np.ndarray = x.reshape(batch, seq, heads, hidden // heads).transpose(0, 2, 1, 3)
    return split


def join_heads(x: np.ndarray) -> np.ndarray:
    """(B,H,seq,D) -> (B,seq,H*D)."""
    batch, heads, seq, size = x.shape
    joined: np.ndarray = x.transpose(0, 2, 1, 3).reshape(batch, seq, heads * size)
    return joined


def check_float(op_name: str, name: str, x: np.ndarray) -> None:
    """Raises ValueError unless `x` has one of the four float types."""
    if x.dtype not in FLOAT_TYPES:
        fail(op_name, f"type of '{name}'", FLOAT_TYPE_NAMES, type_name(x.dtype))


def check_same_type(op_name: str, name: str, x: np.ndarray, other_name: str, other: np.ndarray) -> None:
    """Raises ValueError unless both have one type."""
    if x.dtype != other.dtype:
        fail(op_name, f"type of '{name}'", f"{type_name(other.dtype)} like '{other_name}'", type_name(x.dtype))


def check_dims(op_name: str, name: str, x: np.ndarray, expected: tuple[tuple[str, int | None], ...]) -> None:
    """Raises ValueError unless `x` is of rank 4 with these named sizes; None leaves a size free."""
    if x.ndim != 4:
        fail(op_name, f"rank of '{name}'", "4", f"{x.ndim} (shape {shape_text(x.shape)})")
    for axis, (what, size) in enumerate(expected):
        if size is not None and x.shape[axis] != size:
            fail(
                op_name,
                f"{what} of '{name}'",
                str(size),
                f"{x.shape[axis]} (seen as (batch,heads,sequence,head size) it is {shape_text(x.shape)})",
            )


def _four_dimensional(
    op_name: str, named: dict[str, np.ndarray], heads: dict[str, int | None]
) -> tuple[list[np.ndarray], bool]:
    """Q, K and V as (B,H,seq,D), and whether they came with rank 3."""
    rank = named["Q"].ndim
    if rank not in (3, 4):
        fail(op_name, "rank of 'Q'", "3 or 4", f"{rank} (shape {shape_text(named['Q'].shape)})")
    for name in ("K", "V"):
        if named[name].ndim != rank:
            got = f"{named[name].ndim} (shape {shape_text(named[name].shape)})"
            fail(op_name, f"rank of '{name}'", f"{rank} like 'Q'", got)
    for attribute, count in heads.items():
        if count is None and rank == 3:
            fail(op_name, f"attribute '{attribute}'", "a positive value, as Q, K and V have rank 3", "none")
        if count is not None and count <= 0:
            fail(op_name, f"attribute '{attribute}'", "a positive value", str(count))
    arrays = []
    for name, x in named.items():
        attribute = "q_num_heads" if name == "Q" else "kv_num_heads"
        count = heads[attribute]
        if rank == 3:
            assert count is not None
            x = split_heads(op_name, name, x, count)
        elif count is not None and count != x.shape[1]:
            got = f"{count} (shape of '{name}' is {shape_text(x.shape)})"
            fail(op_name, f"attribute '{attribute}'", f"the heads of '{name}', {x.shape[1]}", got)
        elif x.shape[1] == 0:
            fail(op_name, f"heads of '{name}'", "at least 1", f"0 (shape {shape_text(x.shape)})")
        arrays.append(x)
    return arrays, rank == 3


def _finite_float(op_name: str, name: str, value: float) -> float:
    """The attribute as ONNX stores it, a 32-bit float."""
    with np.errstate(over="ignore"):
        stored = float(np.float32(value))
    if not math.isfinite(stored):
        fail(op_name, f"attribute '{name}'", "a finite float", str(value))
    return stored


def check_heads(
    op_name: str,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    past_key: np.ndarray | None,
    past_value: np.ndarray | None,
    *,
    scale: float | None,
    softcap: float,
    q_num_heads: int | None,
    kv_num_heads: int | None,
) -> Heads:
    """Checks types and shapes of Q, K, V and the past and joins past and new keys. Raises ValueError."""
    named = {"Q": q, "K": k, "V": v}
    for name, x in named.items():
        check_float(op_name, name, x)
    check_same_type(op_name, "K", k, "Q", q)
    (q, new_k, new_v), rank3 = _four_dimensional(
        op_name, named, {"q_num_heads": q_num_heads, "kv_num_heads": kv_num_heads}
    )
    batch, q_heads, _, head_size = q.shape
    kv_heads, new_len = new_k.shape[1:3]
    check_dims(op_name, "K", new_k, (("batch", batch), ("heads", None), ("sequence", None), ("head size", head_size)))
    check_dims(op_name, "V", new_v, (("batch", batch), ("heads", kv_heads), ("sequence", new_len), ("head size", None)))
    if q_heads % kv_heads:
        fail(op_name, "query heads", f"a multiple of the {kv_heads} key/value heads", str(q_heads))
    if (past_key is None) != (past_value is None):
        given, missing = ("past_value", "past_key") if past_key is None else ("past_key", "past_value")
        fail(op_name, f"input '{missing}'", f"a tensor, as '{given}' is given", "none")
    past_len = None
    if past_key is not None and past_value is not None:
        check_same_type(op_name, "past_key", past_key, "K", new_k)
        check_same_type(op_name, "past_value", past_value, "V", new_v)
        of_past = (("batch", batch), ("heads", kv_heads))
        check_dims(op_name, "past_key", past_key, (*of_past, ("sequence", None), ("head size", head_size)))
        past_len = past_key.shape[2]
        check_dims(op_name, "past_value", past_value, (*of_past, ("sequence", past_len), ("head size", new_v.shape[3])))
        new_k = np.concatenate([past_key, new_k], axis=2)
        new_v = np.concatenate([past_value, new_v], axis=2)
    # A plain average where D = 0: every score is 0, whatever the scale.
    default_scale = 1.0 / math.sqrt(head_size) if head_size else 0.0
    return Heads(
        q=q,
        k=new_k,
        v=new_v,
        rank3=rank3,
        past_len=past_len,
        scale=default_scale if scale is None else _finite_float(op_name, "scale", scale),
        softcap=_finite_float(op_name, "softcap", softcap),
    )
