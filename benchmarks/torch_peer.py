"""torch.nn.functional.scaled_dot_product_attention, in float32 and in the row's own type."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.contender import TOLERANCE, Contender, Unavailable
from benchmarks.problem import Array, Problem
from benchmarks.rows import TORCH

try:
    import torch
except ImportError:
    torch = None


def makers(problem: Problem, threads: int) -> Iterator[tuple[str, Callable[[], Contender]]]:
    """Names of what may run this row, and functions that set it up or raise Unavailable."""
    row = problem.row
    if row.kind == "quantize" or row.past:
        return
    yield TORCH, functools.partial(_contender, TORCH, problem, threads, "float32")
    if row.dtype != "float32":
        name = f"torch {row.dtype}"
        yield name, functools.partial(_contender, name, problem, threads, row.dtype)


def _contender(name: str, problem: Problem, threads: int, dtype: str) -> Contender:
    if torch is None:
        raise Unavailable("torch is not installed")
    row, s = problem.row, problem.row.shape
    kind = getattr(torch, dtype)
    query, key, value = (torch.from_numpy(array).to(kind) for array in (problem.query, problem.key, problem.value))
    options: dict[str, Any] = {"enable_gqa": s.q_heads != s.kv_heads}
    if problem.mask is not None:
        options["attn_mask"] = torch.from_numpy(problem.mask).to(kind)
    elif row.causal and problem.offset == 0:
        options["is_causal"] = True
    elif row.causal and s.queries > 1:
        options["attn_mask"] = torch.from_numpy(problem.visible(np.arange(s.queries)))
    results: list[Any] = [None]

    def run() -> None:
        with torch.inference_mode():
            results[0] = torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)

    def output() -> Array:
        return np.asarray(results[0].float().numpy())

    return Contender(
        name,
        threads,
        run,
        before=functools.partial(torch.set_num_threads, threads),
        output=output,
        tolerance=TOLERANCE[dtype],
    )
