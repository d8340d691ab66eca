"""Attention's kernels at every head size, tile end, group and type, on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.attention_bounds import check
from support.attention_calls import FLOAT_TYPES, AttentionCall, Geometry, make_call
from support.core_attention import EVERYTHING, run_core

from onnx_ai_rt import _core

HEAD_SIZES = (0, 1, 3, 7, 8, 16, 17, 31, 32, 33, 64, 80, 96, 128, 129, 256)
# One, odd, around the ends of vectors and tiles.
LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 257)
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 12)


@pytest.fixture(params=FLOAT_TYPES, ids=str)
def query_type(request: pytest.FixtureRequest) -> Any:
    return request.param


def judge(call: AttentionCall) -> None:
    """Both paths: with and without scores."""
    check(call, run_core(call))
    check(call, run_core(call, EVERYTHING))


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_head_sizes(cpu_target: str, query_type: Any, head_size: int) -> None:
    rng = np.random.default_rng(head_size)
    for v_head_size in (head_size, 8, 129):
        judge(make_call(Geometry(Hq=2, S=3, N=19, D=head_size, Dv=v_head_size), rng, query_type))
        judge(make_call(Geometry(Hq=2, S=3, N=19, D=v_head_size, Dv=head_size), rng, query_type))


@pytest.mark.parametrize("value_type", FLOAT_TYPES, ids=str)
def test_type_pairs(cpu_target: str, query_type: Any, value_type: Any) -> None:
    rng = np.random.default_rng(0)
    for rank3 in (False, True):
        geometry = Geometry(B=2, Hq=4, Hkv=2, S=5, L=9, N=24, D=40, Dv=24, rank3=rank3)
        judge(make_call(geometry, rng, query_type, value_type))
        judge(make_call(geometry, rng, query_type, value_type, is_causal=1, softcap=3.0))


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(cpu_target: str, query_type: Any, length: int) -> None:
    rng = np.random.default_rng(length)
    judge(make_call(Geometry(N=length), rng, query_type))
    judge(make_call(Geometry(S=length, N=length), rng, query_type, is_causal=1))
    judge(make_call(Geometry(S=length, N=20), rng, query_type, is_causal=1))
    judge(make_call(Geometry(S=2, L=length, N=2), rng, query_type, is_causal=1))
    judge(make_call(Geometry(S=33, N=length), rng, query_type, left_window_size=length // 2, right_window_size=3))


@pytest.mark.parametrize("group", GROUPS)
def test_groups(cpu_target: str, query_type: Any, group: int) -> None:
    rng = np.random.default_rng(group)
    for q_len in (1, 2, 17):
        for kv_heads in (1, 3):
            geometry = Geometry(B=2, Hq=group * kv_heads, Hkv=kv_heads, S=q_len, N=37, D=16, Dv=24)
            judge(make_call(geometry, rng, query_type, is_causal=1))


def test_long_rows(cpu_target: str, query_type: Any) -> None:
    rng = np.random.default_rng(1)
    judge(make_call(Geometry(Hq=4, Hkv=2, S=1, L=4100, N=1, D=32, Dv=32), rng, query_type, is_causal=1))
    judge(make_call(Geometry(Hq=2, S=2, L=1999, N=2, D=32, Dv=32), rng, query_type, left_window_size=700))


@pytest.mark.parametrize("head_size", [64, 128, 129, 256, 600])
def test_tiles_of_wide_rows(cpu_target: str, query_type: Any, head_size: int) -> None:
    """Few queries: the wider the rows, the fewer keys a tile has."""
    rng = np.random.default_rng(head_size)
    geometry = Geometry(Hq=4, Hkv=2, S=2, L=90, N=60, D=head_size, Dv=head_size)
    mask = np.where(rng.random((2, 150)) < 0.2, -np.inf, rng.standard_normal((2, 150))).astype(np.float32)
    judge(make_call(geometry, rng, query_type, is_causal=1))
    judge(make_call(geometry, rng, query_type, attn_mask=mask))
    judge(make_call(geometry, rng, query_type, left_window_size=70))


@pytest.mark.parametrize("S", [1, 16, 40])
def test_masks_in_place(cpu_target: str, query_type: Any, S: int) -> None:
    """Whole tiles of a mask that is added as it lies: one for all heads, one for each, rows far apart."""
    rng = np.random.default_rng(S)
    for heads in (1, 4):
        for T in (64, 128, 191):
            mask = rng.standard_normal((1, heads, S, T)).astype(np.float32)
            judge(make_call(Geometry(Hq=4, Hkv=2, S=S, N=T), rng, query_type, attn_mask=mask))
            mask[rng.random(mask.shape) < 0.3] = -np.inf
            mask[..., 64:128] = -np.inf  # tiles that nobody sees
            judge(make_call(Geometry(Hq=4, Hkv=2, S=S, N=T), rng, query_type, attn_mask=mask))


@pytest.mark.parametrize("rank3", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{"B": 0}, {"S": 0}, {"N": 0}, {"D": 0}, {"Dv": 0}, {"N": 0, "L": 0}, {"N": 0, "L": 4}, {"S": 0, "N": 0, "Dv": 0}],
    ids=str,
)
def test_empty_dimensions(cpu_target: str, changes: dict[str, int], rank3: bool) -> None:
    g = Geometry(**{**{"B": 2, "Hq": 4, "Hkv": 2, "S": 3, "N": 5, "D": 6, "Dv": 7, "rank3": rank3}, **changes})
    for mask in (None, np.zeros((g.S, g.T), np.float32), np.ones((g.B, 1, 1, min(g.T, 1)), bool)):
        judge(make_call(g, np.random.default_rng(0), attn_mask=mask))


def test_more_scores_than_32_bits_count() -> None:
    """S * T beyond 2^31; rows near the end are judged alone. On the best instruction set only."""
    size, rows = 46400, slice(46390, None)
    rng = np.random.default_rng(0)
    x = {name: rng.standard_normal((1, 1, size, 1)).astype(np.float16) for name in "QKV"}
    got = _core.attention(x, {"scale": 1.0}, [], 2)["Y"]
    few = AttentionCall({**x, "Q": np.ascontiguousarray(x["Q"][:, :, rows])}, {"scale": 1.0})
    check(few, {"Y": got[:, :, rows]})


def test_rows_without_columns_are_not_walked() -> None:
    q, k = np.zeros((1, 1, 2**36, 0), np.float32), np.zeros((1, 1, 1, 0), np.float32)
    assert _core.attention({"Q": q, "K": k, "V": k}, {}, ["present_key"])["Y"].shape == q.shape
