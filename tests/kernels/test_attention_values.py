"""Attention's kernels on numbers at the edge: NaN and infinity, huge biases and scores, rows without keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.attention_bounds import check
from support.attention_calls import FLOAT_TYPES, AttentionCall, Geometry, make_call
from support.core_attention import EVERYTHING, run_core

NAN, INF = float("nan"), float("inf")
# Queries few and many, keys in one tile and in several; the kernels have a path for each.
GEOMETRIES = (
    Geometry(Hq=2, S=1, L=30, N=3, D=16, Dv=16),
    Geometry(Hq=4, Hkv=2, S=35, N=80, D=16, Dv=24),
    Geometry(Hq=3, S=2, L=520, N=2, D=8, Dv=8),
)


@pytest.fixture(params=GEOMETRIES, ids=("decode", "prefill", "long"))
def geometry(request: pytest.FixtureRequest) -> Geometry:
    return request.param


@pytest.fixture(params=FLOAT_TYPES, ids=str)
def query_type(request: pytest.FixtureRequest) -> Any:
    return request.param


def judge(call: AttentionCall) -> dict[str, np.ndarray]:
    """Without and with scores, in every mode."""
    got = run_core(call)
    check(call, got)
    for mode in range(4):
        check(call.in_mode(mode), run_core(call.in_mode(mode), EVERYTHING))
    return got


@pytest.mark.parametrize("poison", [NAN, INF, -INF], ids=str)
def test_hidden_keys_have_no_influence(cpu_target: str, geometry: Geometry, query_type: Any, poison: float) -> None:
    """Bit for bit: whatever the hidden keys hold."""
    g = geometry
    every_third = np.arange(g.T) % 3 != 0
    external = replace(g, L=None, N=g.T, B=2)
    for shape, changes in (
        (g, {"attn_mask": every_third}),
        (g, {"attn_mask": np.where(every_third, 0.5, -INF).astype(query_type), "is_causal": 1}),
        (g, {"attn_mask": np.ones((1, 1, g.T // 2), np.int32)}),
        (g, {"left_window_size": 4, "right_window_size": 0}),
        (external, {"nonpad_kv_seqlen": np.array([g.T // 2, 3])}),
        (external, {"nonpad_kv_seqlen": np.array([0, g.T - 1]), "is_causal": 1}),
    ):
        clean, dirty = (
            make_call(shape, np.random.default_rng(1), query_type, poison=value, **changes) for value in (None, poison)
        )
        assert clean.inputs["K"].tobytes() != dirty.inputs["K"].tobytes() or g.L
        got = run_core(dirty, ("present_key", "present_value"))
        check(dirty, got)
        assert got["Y"].tobytes() == run_core(clean, ("present_key", "present_value"))["Y"].tobytes()


@pytest.mark.parametrize("name", ["K", "V", "Q", "past_key", "past_value"])
@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
def test_visible_nan_and_infinity(
    cpu_target: str, geometry: Geometry, query_type: Any, name: str, value: float
) -> None:
    call = make_call(geometry, np.random.default_rng(2), query_type, is_causal=1)
    if name in call.inputs:
        call.inputs[name][0, 0, 0, 3] = value
    judge(call)


def test_nan_and_infinity_in_the_mask(cpu_target: str, geometry: Geometry, query_type: Any) -> None:
    for value in (NAN, INF):
        mask = np.zeros((geometry.S, geometry.T), np.float32)
        mask[0, 1], mask[0, 0] = value, -INF
        got = judge(make_call(geometry, np.random.default_rng(3), query_type, attn_mask=mask))
        finite = np.isfinite(got["Y"].astype(np.float64)).all(axis=(0, 1, 3))
        assert finite.tolist() == [i != 0 for i in range(geometry.S)]


@pytest.mark.parametrize("mask_type", FLOAT_TYPES, ids=str)
def test_huge_biases(cpu_target: str, geometry: Geometry, query_type: Any, mask_type: Any) -> None:
    rng = np.random.default_rng(4)
    info = ml_dtypes.finfo(mask_type)
    lowest, highest = float(info.min), float(info.max)
    values = [lowest, highest, lowest / 2, -1e30, -1e9, -3e4, 1e4]
    for value in (v for v in values if lowest <= v <= highest):
        judge(make_call(geometry, rng, query_type, attn_mask=np.full(geometry.T, value).astype(mask_type)))
        mask = np.where(rng.random((geometry.S, geometry.T)) < 0.5, value, 0.0).astype(mask_type)
        judge(make_call(geometry, rng, query_type, attn_mask=mask, is_causal=1))
    mask = rng.choice([lowest, -INF, highest, 0.0, -1.0], (geometry.S, geometry.T)).astype(mask_type)
    judge(make_call(geometry, rng, query_type, attn_mask=mask))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint64], ids=lambda d: np.dtype(d).name)
def test_huge_integer_biases(cpu_target: str, geometry: Geometry, query_type: Any, dtype: Any) -> None:
    rng = np.random.default_rng(5)
    info = np.iinfo(dtype)
    for choices in ([info.min], [info.max], [info.min, info.max], [info.min, 0, 1]):
        mask = rng.choice(np.array(choices, dtype), (geometry.S, geometry.T))
        judge(make_call(geometry, rng, query_type, attn_mask=mask))


def test_clamped_sums(cpu_target: str) -> None:
    """Scores and biases that are finite, sums that are not."""
    geometry = Geometry(S=3, N=70, D=4, Dv=8)
    for sign in (1.0, -1.0):
        call = make_call(geometry, np.random.default_rng(6), attn_mask=np.full(70, sign * 3e38, np.float32), scale=1.0)
        call.inputs["Q"][:] = 1e19
        call.inputs["K"][:] = sign * 2e18
        judge(call)


def test_rows_without_keys(cpu_target: str, geometry: Geometry, query_type: Any) -> None:
    g = geometry
    rows = np.arange(g.S)[:, None] % 2 == 1
    for changes in (
        {"attn_mask": np.broadcast_to(rows, (g.S, g.T)).copy()},
        {"attn_mask": np.where(rows, 0, -INF).astype(np.float32)},
        {"attn_mask": np.zeros((g.S, g.T), bool)},
        {"attn_mask": np.array(False)},
        {"attn_mask": np.zeros((g.S, 0), bool)},
        {"attn_mask": np.array(-INF, query_type)},
    ):
        judge(make_call(g, np.random.default_rng(7), query_type, poison=NAN, **changes))
    lengths = np.array([0, 1])
    external = replace(g, L=None, N=g.T, B=2)
    call = make_call(external, np.random.default_rng(7), query_type, nonpad_kv_seqlen=lengths, poison=NAN, is_causal=1)
    assert not judge(call)["Y"][0].any()


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-30, 100.0])
def test_scales(cpu_target: str, geometry: Geometry, query_type: Any, scale: float) -> None:
    judge(make_call(geometry, np.random.default_rng(8), query_type, scale=scale))
    judge(make_call(geometry, np.random.default_rng(8), query_type, scale=scale, softcap=30.0, is_causal=1))


@pytest.mark.parametrize("softcap", [-1.0, 1e-30, 0.01, 1e4])
def test_softcaps(cpu_target: str, geometry: Geometry, query_type: Any, softcap: float) -> None:
    judge(make_call(geometry, np.random.default_rng(9), query_type, softcap=softcap))


@pytest.mark.parametrize("query_type", [np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_half_inputs_do_not_overflow_on_the_way(cpu_target: str, query_type: Any) -> None:
    for geometry in GEOMETRIES:
        call = make_call(geometry, np.random.default_rng(10), query_type, scale=1e-6)
        call.inputs["Q"][:] = 30000.0
        call.inputs["K"][:] = call.inputs["K"] * query_type(10000.0)
        judge(call)


def test_one_huge_score_takes_all(cpu_target: str, geometry: Geometry, query_type: Any) -> None:
    """Products of which float keeps a rounding of thousands: what is left of it must not reach exp."""
    call = make_call(geometry, np.random.default_rng(11), query_type, scale=0.3)
    values = {**call.inputs, "Q": np.full_like(call.inputs["Q"], 41000.0), "K": np.zeros_like(call.inputs["K"])}
    values["K"][..., -1, :] = 57000.0
    if "past_key" in values:
        values["past_key"] = np.zeros_like(values["past_key"])
    got = run_core(replace(call, inputs=values))["Y"]
    group = got.shape[1] // values["V"].shape[1]
    expected = np.repeat(values["V"][:, :, -1:], group, axis=1).astype(query_type)
    np.testing.assert_array_equal(got, np.broadcast_to(expected, got.shape))


@pytest.mark.parametrize("mask", [[NAN], [[NAN]], NAN], ids=["rank 1", "rank 2", "rank 0"])
def test_keys_whose_every_bias_is_nan_take_part(cpu_target: str, query_type: Any, mask: Any) -> None:
    inputs = {"Q": np.ones((1, 1, 1, 8)), "K": np.ones((1, 1, 1, 8)), "V": np.ones((1, 1, 1, 2))}
    call = AttentionCall(
        {**{k: v.astype(query_type) for k, v in inputs.items()}, "attn_mask": np.asarray(mask, np.float32)}, {}
    )
    assert np.isnan(run_core(call)["Y"].astype(np.float64)).all()


def test_a_tile_of_nan_biases_takes_part(cpu_target: str, query_type: Any) -> None:
    mask = np.zeros((2, 300), np.float32)
    mask[:, 64:128] = NAN
    got = run_core(
        make_call(Geometry(Hq=2, S=2, N=300, D=8, Dv=3), np.random.default_rng(12), query_type, attn_mask=mask)
    )
    assert np.isnan(got["Y"].astype(np.float64)).all()
