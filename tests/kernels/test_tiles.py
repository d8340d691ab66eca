"""Tiles: one product against the manual's text, and attention on them, emulated where the CPU has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.attention_bounds import check
from support.attention_calls import AttentionCall, Geometry, make_call
from support.core_attention import EVERYTHING, run_core

from onnx_ai_rt import _core

BFLOAT16, FLOAT16, FLOAT = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
HALVES = (BFLOAT16, FLOAT16)
UNITS = tuple(name for name in ("AMX", "AMX_EMULATED") if name in _core.supported_cpu_targets())

pytestmark = pytest.mark.skipif(not UNITS, reason="tiles are a matter of x86-64")


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest) -> Iterator[str]:
    _core.choose_cpu_target(request.param)
    yield request.param
    _core.choose_cpu_target("best")


def plan_path(target: str, call: AttentionCall, request: tuple[str, ...] = ()) -> str:
    _core.choose_cpu_target(target)
    try:
        return str(_core.plan_attention(call.inputs, call.attributes, list(request))["path"])
    finally:
        _core.choose_cpu_target("best")


# One product of tiles.


def flushed(x: np.ndarray) -> np.ndarray:
    """Numbers below the smallest normal one are zeros of their sign."""
    return np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x).astype(np.float32)


def tdpbf16ps(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """TDPBF16PS of Intel's manual; a and b as (16, 16, 2) floats that bfloat16 holds.

    A fused multiply-add is done in double: the product is exact there, and the test's numbers are near enough to each
    other for the sum to be so, too.
    """
    a, b, c = flushed(a), flushed(b), c.copy()
    with np.errstate(all="ignore"):
        for m in range(16):
            temp = np.zeros((16, 2), np.float32)  # temp1.fp32[2n], temp1.fp32[2n + 1]
            for k in range(16):
                temp = flushed(np.float32(np.float64(temp) + np.float64(a[m, k]) * np.float64(b[k])))
            both = flushed(temp[:, 0] + temp[:, 1])
            c[m] = flushed(flushed(c[m]) + both)
    return c


def bits_of(x: np.ndarray) -> np.ndarray:
    """Pairs of bfloat16 as the tiles have them: the first in the lower bits."""
    return np.ascontiguousarray(x.astype(BFLOAT16)).view(np.uint32)[..., 0]


def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray, emulated: bool) -> np.ndarray:
    return np.asarray(_core.multiply_tile(bits_of(a), bits_of(b), c, emulated))


def tiles(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((16, 16, 2)).astype(BFLOAT16).astype(np.float32) for _ in range(2))
    return a, b, rng.standard_normal((16, 16)).astype(np.float32)


def same(got: np.ndarray, expected: np.ndarray) -> bool:
    """Bit for bit, but for the bits of NaN."""
    nan = np.isnan(expected)
    return bool((np.isnan(got) == nan).all() and got[~nan].tobytes() == expected[~nan].tobytes())


@pytest.mark.parametrize("seed", range(8))
def test_product_of_ordinary_numbers(cpu_target: str, seed: int) -> None:
    a, b, c = tiles(seed)
    assert same(multiply(a, b, c, cpu_target != "AMX"), tdpbf16ps(a, b, c))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0**-130, -(2.0**-130), 2.0**-126, 2.0**127])
def test_product_of_special_numbers(unit: str, value: float) -> None:
    """Subnormal numbers are zeros on the way in and on the way out."""
    for seed, small in ((0, False), (1, True)):
        a, b, c = tiles(seed)
        for x, place in ((a, (3, 5, 1)), (b, (7, 2, 0)), (c, (11, 4))):
            x[place] = value
        if small:  # sums near the end of the range
            a, b, c = a * np.float32(2.0**-60), b * np.float32(2.0**-64), c * np.float32(2.0**-126)
        assert same(multiply(a, b, c, unit == "AMX_EMULATED"), tdpbf16ps(a, b, c))


# Attention on tiles.


def test_paths() -> None:
    rng = np.random.default_rng(0)
    for dtype, name in ((BFLOAT16, "tiled_amx_bf16"), (FLOAT16, "tiled_amx_f16"), (FLOAT, "tiled_f32")):
        many, few = (make_call(Geometry(S=rows, N=40, D=24), rng, dtype) for rows in (17, 16))
        assert plan_path("AMX_EMULATED", many) == name
        assert plan_path("AMX_EMULATED", many, EVERYTHING) == f"{name}_scores"
        assert plan_path("AMX_EMULATED", few) == "direct_f32"
        for target in _core.supported_cpu_targets():
            assert "amx" not in plan_path(target, many) or target.startswith("AMX")
    mixed = make_call(Geometry(S=17, N=40, D=24), rng, BFLOAT16, FLOAT16)
    assert plan_path("AMX_EMULATED", mixed) == "tiled_amx_bf16"
    assert plan_path("AMX_EMULATED", make_call(Geometry(S=17, N=40, D=24), rng, FLOAT16, FLOAT)) == "tiled_f32"


def test_names() -> None:
    assert _core.chosen_cpu_target() != "AMX_EMULATED"
    assert _core.supported_cpu_targets()[-1] == "AMX_EMULATED"
    if "AMX" not in UNITS:
        with pytest.raises(ValueError, match=r"^CPU target: expected one of .*, got 'AMX': "):
            _core.choose_cpu_target("AMX")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("head_size", [1, 15, 16, 31, 32, 33, 64, 128, 192])
def test_head_sizes(unit: str, dtype: Any, head_size: int) -> None:
    rng = np.random.default_rng(head_size)
    for other in (head_size, 20, 192):
        for g in (Geometry(S=40, N=70, D=head_size, Dv=other), Geometry(Hq=3, S=17, N=33, D=other, Dv=head_size)):
            call = make_call(g, rng, dtype)
            check(call, run_core(call))
            check(call, run_core(call, EVERYTHING))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(17, 70),
    keys=st.integers(1, 200),
    head_size=st.sampled_from((1, 15, 16, 31, 32, 33, 64, 128)),
    types=st.sampled_from(((BFLOAT16, BFLOAT16), (FLOAT16, FLOAT16), (BFLOAT16, FLOAT16), (FLOAT16, BFLOAT16))),
    kind=st.sampled_from(("plain", "causal", "softcap", "window", "mask", "bias")),
    poison=st.sampled_from((None, np.nan, np.inf, -np.inf)),
    request=st.sampled_from(((), EVERYTHING)),
)
def test_rows_and_keys(
    unit: str,
    rows: int,
    keys: int,
    head_size: int,
    types: tuple[Any, Any],
    kind: str,
    poison: float | None,
    request: tuple[str, ...],
) -> None:
    rng = np.random.default_rng(rows * keys)
    g = Geometry(S=rows, N=keys, D=head_size, Dv=max(1, head_size - 3))
    attributes: dict[str, Any] = {
        "plain": {},
        "causal": {"is_causal": 1},
        "softcap": {"softcap": 2.0},
        "window": {"left_window_size": 5, "right_window_size": 2},
        "mask": {"attn_mask": np.arange(keys) % 3 != 0},
        "bias": {"attn_mask": np.where(np.arange(keys) % 5 != 0, rng.standard_normal(keys), -np.inf).astype(types[0])},
    }[kind]
    if "attn_mask" in attributes:
        attributes["attn_mask"] = np.broadcast_to(attributes["attn_mask"], (rows, keys)).copy()
    call = make_call(g, rng, *types, poison=poison, **attributes)
    check(call, run_core(call, request))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("heads", [1, 32])
@pytest.mark.parametrize("cut", [1, 15, 16, 17, 32, 47, 63])
def test_hidden_values_within_a_pair_of_tiles(unit: str, dtype: Any, cut: int, heads: int) -> None:
    """A chunk of rows may see a part of the keys that a product of tiles reads; bit for bit, whatever the rest holds.

    32 heads are the rows of one token, which see the same keys: no bias says which. With one past key, the first token
    of a work item may see 16 keys, and the second one more.
    """
    results = []
    for poison in (0.0, np.nan, np.inf):
        g = Geometry(Hq=heads, Hkv=1, S=64, L=1, N=64, D=16, Dv=40)
        call = make_call(g, np.random.default_rng(cut), dtype, is_causal=1)
        call.inputs["V"][:, :, cut:] = poison
        call.inputs["K"][:, :, cut:] = poison
        results.append(run_core(call)["Y"][:, :, :cut].tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("name", ["Q", "K", "V"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_visible_infinity_is_not_nan(unit: str, name: str, value: float) -> None:
    """The parts of infinity meet parts of either sign."""
    for seed in range(4):
        call = make_call(Geometry(Hq=2, S=40, N=70, D=24, Dv=24), np.random.default_rng(seed), FLOAT16)
        call.inputs[name][0, 0, seed * 7, 3] = value
        for mode in (0, 2):
            check(call.in_mode(mode), run_core(call.in_mode(mode), EVERYTHING))
        check(call, run_core(call))


def errors(call: AttentionCall, target: str) -> tuple[float, float]:
    """Root mean square and largest error of Y, relative to Y's root mean square."""
    _core.choose_cpu_target(target)
    try:
        got = run_core(call)["Y"].astype(np.float64)
    finally:
        _core.choose_cpu_target("best")
    exact = call.trace.output
    difference = np.abs(got - exact)
    size = float(np.sqrt(np.mean(exact**2)))
    return float(np.sqrt(np.mean(difference**2))) / size, float(difference.max()) / size


@pytest.mark.parametrize("size", [1.0, 0.01, 6.0])
def test_float16_is_as_exact_as_in_float(size: float) -> None:
    """Y's error is that of its rounding to float16, on float's way and on tiles. Large scores leave few keys a weight;
    small values are subnormal in float16."""
    rng = np.random.default_rng(0)
    call = make_call(Geometry(Hq=2, S=96, N=300, D=64, Dv=64), rng, FLOAT16)
    call.inputs["Q"] = (call.inputs["Q"] * np.float16(size)).astype(FLOAT16)
    if size < 1:
        call.inputs["V"] = (call.inputs["V"] * np.float16(2e-4)).astype(FLOAT16)
    exact = call.trace.output
    rounding = np.abs(exact.astype(FLOAT16).astype(np.float64) - exact)
    rounding_error = float(np.sqrt(np.mean(rounding**2) / np.mean(exact**2)))
    in_float = errors(call, "AVX2" if "AVX2" in _core.supported_cpu_targets() else "SSE2")
    on_tiles = errors(call, UNITS[0])
    assert on_tiles[0] <= 1.01 * in_float[0]
    assert on_tiles[0] <= 1.01 * rounding_error
    assert on_tiles[1] <= 1.1 * in_float[1]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_scores_as_exact_as_in_float(unit: str, dtype: Any) -> None:
    """Dot products that cancel: the products of second parts count."""
    rng = np.random.default_rng(1)
    q = rng.standard_normal((1, 1, 33, 8)).astype(dtype)
    k = np.concatenate([q[:, :, :20], np.negative(q[:, :, :20])], axis=-1)
    call = AttentionCall({"Q": np.concatenate([q, q], axis=-1), "K": k, "V": k}, {})
    check(call, run_core(call, EVERYTHING))


def test_threads_have_tiles_of_their_own(unit: str) -> None:
    call = make_call(Geometry(B=2, Hq=8, Hkv=4, S=300, N=300, D=32), np.random.default_rng(2), BFLOAT16, is_causal=1)
    first = run_core(call)["Y"].tobytes()
    for threads in (2, 5):
        assert run_core(call, threads=threads)["Y"].tobytes() == first
