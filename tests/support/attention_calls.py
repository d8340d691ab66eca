"""Attention calls for tests: one call's inputs and attributes, and hypothesis strategies that draw them.

Letters as in the operator: B, Hq, Hkv, S, L, N, T = L + N, D, Dv. Hypothesis draws shapes, types, attributes and one
seed; the numbers come from numpy's generator with that seed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from onnx_ai_rt.reference import attention
from onnx_ai_rt.reference.attention import Trace, mask_bias, trace, visible_keys
from onnx_ai_rt.reference.attention_layout import Heads, join_heads, shape_text, type_name

FLOAT_TYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float64))
INTEGER_TYPES = tuple(
    np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
)
# What a mask's numbers look like: see mask_values.
FLOAT_MASK_KINDS = ("plain", "some -inf", "rows of -inf", "very negative", "lowest", "far apart")


@dataclass
class AttentionCall:
    """Inputs by the operator's names, attributes by theirs."""

    inputs: dict[str, np.ndarray]
    attributes: dict[str, Any] = field(default_factory=dict)

    def oracle(self, **changes: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Y, present_key, present_value, qk_matmul_output of the reference; `changes` replace inputs or attributes."""
        return attention(**{**self.inputs, **self.attributes, **changes})

    @functools.cached_property
    def trace(self) -> Trace:
        """Every step of the reference, computed once."""
        without = ("qk_matmul_output_mode", "softmax_precision")
        return trace(**self.inputs, **{k: v for k, v in self.attributes.items() if k not in without})

    def in_mode(self, mode: int) -> AttentionCall:
        """The same call with another qk_matmul_output_mode; its steps are not computed again."""
        call = AttentionCall(self.inputs, {**self.attributes, "qk_matmul_output_mode": mode})
        call.__dict__["trace"] = self.trace
        return call

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name} {type_name(x.dtype)}{shape_text(x.shape)}" for name, x in self.inputs.items())
        return f"AttentionCall({inputs}; {self.attributes})"


@dataclass(frozen=True)
class Geometry:
    """The sizes of one call."""

    B: int = 1
    Hq: int = 1
    Hkv: int = 1
    S: int = 1
    L: int | None = None  # None: no past
    N: int = 1
    D: int = 8
    Dv: int = 8
    rank3: bool = False

    @property
    def T(self) -> int:
        return (self.L or 0) + self.N

    @property
    def score_shape(self) -> tuple[int, int, int, int]:
        return (self.B, self.Hq, self.S, self.T)


def make_call(
    geometry: Geometry,
    rng: np.random.Generator,
    query_type: Any = np.float32,
    value_type: Any = None,
    *,
    attn_mask: np.ndarray | None = None,
    nonpad_kv_seqlen: np.ndarray | None = None,
    poison: float | None = None,
    **attributes: Any,
) -> AttentionCall:
    """Random normal Q, K and V. With `poison`, every key that no query row of its group attends holds that value in
    K and V."""
    g = geometry
    value_type = query_type if value_type is None else value_type
    q = rng.standard_normal((g.B, g.Hq, g.S, g.D))
    k = rng.standard_normal((g.B, g.Hkv, g.T, g.D))
    v = rng.standard_normal((g.B, g.Hkv, g.T, g.Dv))
    if poison is not None:
        unused = ~used_keys(g, attn_mask, nonpad_kv_seqlen, attributes)
        k[unused] = poison
        v[unused] = poison
    with np.errstate(all="ignore"):
        q, k, v = q.astype(query_type), k.astype(query_type), v.astype(value_type)
    past_len = g.L or 0
    inputs = {"Q": q, "K": k[:, :, past_len:], "V": v[:, :, past_len:]}
    if g.rank3:
        inputs = {name: np.ascontiguousarray(join_heads(x)) for name, x in inputs.items()}
        attributes |= {"q_num_heads": g.Hq, "kv_num_heads": g.Hkv}
    if attn_mask is not None:
        inputs["attn_mask"] = attn_mask
    if g.L is not None:
        inputs |= {"past_key": k[:, :, :past_len], "past_value": v[:, :, :past_len]}
    if nonpad_kv_seqlen is not None:
        inputs["nonpad_kv_seqlen"] = nonpad_kv_seqlen
    return AttentionCall({name: np.ascontiguousarray(x) if x.ndim else x for name, x in inputs.items()}, attributes)


def used_keys(
    geometry: Geometry,
    attn_mask: np.ndarray | None,
    nonpad_kv_seqlen: np.ndarray | None,
    attributes: dict[str, Any],
) -> np.ndarray:
    """(B,Hkv,T) bool: some query row of the key's group attends it."""
    g = geometry
    empty = np.zeros((g.B, g.Hq, g.S, 0), np.float32)
    keys = np.zeros((g.B, g.Hkv, g.T, 0), np.float32)
    heads = Heads(q=empty, k=keys, v=keys, rank3=False, past_len=g.L, scale=1.0, softcap=0.0)
    windows = (attributes.get("left_window_size", -1), attributes.get("right_window_size", -1))
    visible = visible_keys("Attention", heads, nonpad_kv_seqlen, attributes.get("is_causal", 0), *windows)
    takes_part = visible & ~np.isneginf(mask_bias("Attention", attn_mask, g.score_shape))
    takes_part = np.broadcast_to(takes_part, g.score_shape)
    return takes_part.reshape(g.B, g.Hkv, g.Hq // g.Hkv, g.S, g.T).any(axis=(2, 3))


def mask_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], kind: str) -> np.ndarray:
    """A mask; for bool and integer types `kind` only matters where it can."""
    if dtype == np.bool_:
        attends = rng.random(shape) < (0.3 if kind == "some -inf" else 0.8)
        return np.asarray(_with_whole_rows(rng, attends, False) if kind == "rows of -inf" else attends)
    if dtype in INTEGER_TYPES:
        low = 0 if dtype.kind == "u" else -6
        return np.asarray(rng.integers(low, 7, shape)).astype(dtype)
    lowest = float(np.finfo(dtype).min if dtype.kind == "f" else ml_dtypes.finfo(dtype).min)
    values = np.asarray(rng.standard_normal(shape))
    if kind == "some -inf":
        values = np.where(rng.random(shape) < 0.5, -np.inf, values)
    elif kind == "rows of -inf":
        values = _with_whole_rows(rng, values, -np.inf)
    elif kind == "very negative":
        values = np.full(shape, max(-1e9, lowest / 2))
    elif kind == "lowest":
        values = np.full(shape, lowest)
    elif kind == "far apart":
        values = np.where(rng.random(shape) < 0.5, lowest, values)
    return np.asarray(values).astype(dtype)


def _with_whole_rows(rng: np.random.Generator, values: np.ndarray, hidden: Any) -> np.ndarray:
    """Some rows of the last axis hidden entirely."""
    rows = rng.random((*values.shape[:-1], 1) if values.ndim else ()) < 0.4
    return np.where(rows, hidden, values)


@dataclass(frozen=True)
class Menu:
    """What the strategy may draw."""

    batches: tuple[int, ...] = (1, 1, 2, 3)
    groups: tuple[int, ...] = (1, 1, 2, 3, 4, 5, 7, 8)
    kv_heads: tuple[int, ...] = (1, 1, 2, 3)
    q_lens: tuple[int, ...] = (1, 2, 3, 5)
    past_lens: tuple[int | None, ...] = (None, None, 0, 1, 3, 17)
    new_lens: tuple[int, ...] = (1, 2, 3, 5, 16, 17)
    head_sizes: tuple[int, ...] = (1, 3, 8, 16, 17, 32)
    query_types: tuple[np.dtype[Any], ...] = FLOAT_TYPES
    value_types: tuple[np.dtype[Any], ...] | None = FLOAT_TYPES  # None: Q's
    mask_types: tuple[np.dtype[Any] | None, ...] = (None, np.dtype(np.bool_), *FLOAT_TYPES, *INTEGER_TYPES[:4])
    mask_ranks: tuple[int, ...] = (0, 1, 2, 2, 3, 4)
    mask_kinds: tuple[str, ...] = FLOAT_MASK_KINDS
    short_masks: bool = True
    nonpad: bool = True
    windows: bool = True
    scales: tuple[float | None, ...] = (None, None, 0.0, 0.3, 1.0, -0.5)
    softcaps: tuple[float, ...] = (0.0, 0.0, 0.5, 20.0)
    precisions: tuple[int | None, ...] = (None, None, 1, 10, 11, 16)
    modes: tuple[int, ...] = (0, 1, 2, 3)
    poisons: tuple[float | None, ...] = (None, float("nan"), float("inf"), 1e30)
    most_work: int = 1 << 21  # B*Hq*S*T*(D+Dv) is shrunk to about this


def _shrink(geometry: Geometry, most_work: int) -> Geometry:
    """Fewer batches, then heads, until the reference takes milliseconds."""
    g = geometry
    for change in ({"B": 1}, {"Hkv": 1, "Hq": max(1, g.Hq // g.Hkv)}, {"Hkv": 1, "Hq": 1}):
        if g.B * g.Hq * g.S * g.T * (g.D + g.Dv) <= most_work:
            break
        g = replace(g, **change)
    return g


@st.composite
def geometries(draw: st.DrawFn, menu: Menu) -> Geometry:
    """Sizes from the menu."""
    kv_heads = draw(st.sampled_from(menu.kv_heads))
    geometry = Geometry(
        B=draw(st.sampled_from(menu.batches)),
        Hq=kv_heads * draw(st.sampled_from(menu.groups)),
        Hkv=kv_heads,
        S=draw(st.sampled_from(menu.q_lens)),
        L=draw(st.sampled_from(menu.past_lens)),
        N=draw(st.sampled_from(menu.new_lens)),
        D=draw(st.sampled_from(menu.head_sizes)),
        Dv=draw(st.sampled_from(menu.head_sizes)),
        rank3=draw(st.booleans()),
    )
    return _shrink(geometry, menu.most_work)


@st.composite
def masks(draw: st.DrawFn, menu: Menu, geometry: Geometry, rng: np.random.Generator) -> np.ndarray | None:
    """A mask of any rank that broadcasts against the scores, or None."""
    dtype = draw(st.sampled_from(menu.mask_types))
    if dtype is None:
        return None
    rank = draw(st.sampled_from(menu.mask_ranks))
    shape = [draw(st.sampled_from((1, size))) for size in geometry.score_shape[4 - rank :]]
    if rank:
        shape[-1] = geometry.T
        if menu.short_masks and draw(st.booleans()):
            shape[-1] = draw(st.integers(0, geometry.T)) if geometry.T else draw(st.integers(0, 1))
    return mask_values(rng, tuple(shape), dtype, draw(st.sampled_from(menu.mask_kinds)))


@st.composite
def attention_calls(draw: st.DrawFn, menu: Menu) -> AttentionCall:
    """Any valid call of the menu."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    geometry = draw(geometries(menu))
    attributes: dict[str, Any] = {}
    if draw(st.booleans()):
        attributes["is_causal"] = 1
    for name in ("left_window_size", "right_window_size"):
        if menu.windows and draw(st.integers(0, 3)) == 0:
            attributes[name] = draw(st.integers(-1, geometry.T + 2))
    optional = {
        "scale": draw(st.sampled_from(menu.scales)),
        "softcap": draw(st.sampled_from(menu.softcaps)),
        "softmax_precision": draw(st.sampled_from(menu.precisions)),
        "qk_matmul_output_mode": draw(st.sampled_from(menu.modes)),
    }
    attributes |= {name: value for name, value in optional.items() if value is not None}
    nonpad = None
    if menu.nonpad and geometry.L is None and draw(st.booleans()):
        shape = (geometry.B,) if draw(st.booleans()) else (geometry.B, 1)
        nonpad = rng.integers(0, geometry.T + 1, shape).astype(np.int64)
    query_type = draw(st.sampled_from(menu.query_types))
    return make_call(
        geometry,
        rng,
        query_type,
        query_type if menu.value_types is None else draw(st.sampled_from(menu.value_types)),
        attn_mask=draw(masks(menu, geometry, rng)),
        nonpad_kv_seqlen=nonpad,
        poison=draw(st.sampled_from(menu.poisons)),
        **attributes,
    )
