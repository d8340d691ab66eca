"""Attention's kernels on calls that hypothesis draws: shapes, types, masks, attributes, hidden keys full of NaN."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.attention_bounds import check
from support.attention_calls import FLOAT_TYPES, INTEGER_TYPES, AttentionCall, Menu, attention_calls
from support.core_attention import EVERYTHING, run_core

# An instruction set is chosen once for all examples.
COMMON = {"suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}
HEAD_SIZES = (0, 1, 3, 7, 8, 16, 17, 31, 32, 33, 64, 80, 96, 128, 129)
TILE_ENDS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
MASK_TYPES = (None, np.dtype(np.bool_), *FLOAT_TYPES, *INTEGER_TYPES)

SMALL = Menu(
    batches=(0, 1, 1, 2, 3),
    q_lens=(0, 1, 1, 2, 3, 5, 8),
    past_lens=(None, None, None, 0, 1, 3, 17),
    new_lens=(0, 1, 2, 3, 5, 16, 17),
    head_sizes=HEAD_SIZES,
    mask_types=MASK_TYPES,
)
PREFILL = Menu(
    batches=(1, 2),
    groups=(1, 2, 3, 4),
    kv_heads=(1, 2),
    q_lens=TILE_ENDS,
    past_lens=(None, None, 0, 5, 64),
    new_lens=TILE_ENDS,
    head_sizes=(1, 8, 17, 32, 64),
    mask_types=MASK_TYPES,
    most_work=1 << 21,
)
DECODE = Menu(
    batches=(1, 2),
    q_lens=(1, 1, 1, 2, 4),
    past_lens=(0, 63, 64, 65, 200, 511, 1030),
    new_lens=(1, 2, 4),
    head_sizes=(8, 32, 64, 128),
    mask_types=MASK_TYPES,
    most_work=1 << 21,
)
REQUESTS = st.sets(st.sampled_from(EVERYTHING)).map(lambda names: tuple(sorted(names)))


@settings(max_examples=400, **COMMON)
@given(call=attention_calls(SMALL), request=REQUESTS)
def test_small_calls(cpu_target: str, call: AttentionCall, request: tuple[str, ...]) -> None:
    check(call, run_core(call, request))


@settings(max_examples=120, **COMMON)
@given(call=attention_calls(PREFILL), request=REQUESTS)
def test_prefill(cpu_target: str, call: AttentionCall, request: tuple[str, ...]) -> None:
    check(call, run_core(call, request))


@settings(max_examples=120, **COMMON)
@given(call=attention_calls(DECODE), request=REQUESTS)
def test_decode(cpu_target: str, call: AttentionCall, request: tuple[str, ...]) -> None:
    check(call, run_core(call, request))


@settings(max_examples=60, **COMMON)
@given(call=st.one_of(attention_calls(PREFILL), attention_calls(DECODE)), request=REQUESTS)
def test_bits_do_not_depend_on_threads(cpu_target: str, call: AttentionCall, request: tuple[str, ...]) -> None:
    first = run_core(call, request, threads=1)
    for threads in (2, 1, 3):
        again = run_core(call, request, threads=threads)
        for name, x in first.items():
            assert again[name].tobytes() == x.tobytes(), f"{name} with {threads} threads"
