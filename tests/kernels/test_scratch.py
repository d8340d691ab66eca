"""Memory that a thread keeps between items: whatever stands in it, results are the same bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.attention_calls import FLOAT_TYPES, AttentionCall, Geometry, make_call
from support.core_attention import EVERYTHING, run_core
from support.paged_calls import Heads, make_cache
from support.paged_calls import make_call as make_paged_call

GEOMETRIES = (
    Geometry(Hq=1, S=1, L=30, N=3, D=17, Dv=9),
    Geometry(Hq=4, Hkv=1, S=1, L=130, N=1, D=64, Dv=64),
    Geometry(Hq=4, Hkv=2, S=35, N=80, D=16, Dv=24),
    Geometry(Hq=3, S=2, L=520, N=2, D=8, Dv=8),
)


def fill_with(value: float) -> None:
    """Calls whose every number is this one, larger than those that are to be tested."""
    for dtype in FLOAT_TYPES:
        x = np.full((1, 2, 70, 160), value, dtype)
        for queries in (x, np.repeat(x[:, :, :1], 4, axis=1)):
            run_core(AttentionCall({"Q": queries, "K": x, "V": x}))


@pytest.mark.parametrize("query_type", FLOAT_TYPES, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_attention(cpu_target: str, geometry: Geometry, query_type: Any) -> None:
    seen = np.arange(geometry.T) % 3 != 0
    for changes in ({}, {"is_causal": 1}, {"attn_mask": seen}, {"left_window_size": 4, "right_window_size": 0}):
        call = make_call(geometry, np.random.default_rng(0), query_type, **changes)
        results = []
        for value in (0.0, float("nan"), 6e4):
            fill_with(value)
            results.append(run_core(call, EVERYTHING))
        for other in results[1:]:
            for name, x in results[0].items():
                assert other[name].tobytes() == x.tobytes(), name


@pytest.mark.parametrize("name", ["FLOAT16", "INT8", "UINT8", "INT4", "UINT2"])
def test_paged_attention(cpu_target: str, name: str) -> None:
    rng = np.random.default_rng(1)
    for query_heads, s in ((1, 1), (4, 1), (2, 3), (5, 8)):
        heads = Heads(B=1, Hq=query_heads, Hkv=1, D=64, Dv=256)
        past = make_cache(rng, heads, [64, 64, 13, 51, 20], [name], [name, "FLOAT", name])
        for window in (-1, 13, 70):
            call = make_paged_call(rng, heads, past, s, left_window_size=window)
            results = []
            for value in (0.0, float("nan"), 6e4):
                fill_with(value)
                results.append(call.run()["Y"].tobytes())
            assert results[0] == results[1] == results[2]
