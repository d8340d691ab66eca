"""Error of results by type against double precision, on each instruction set, beside ORT's own and torch's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import onnx_ai_rt
from benchmarks import ort_peers, ours, torch_peer
from benchmarks.contender import Contender, Unavailable
from benchmarks.problem import Array, Problem
from benchmarks.report import Table
from benchmarks.rows import ORT, Row, Shape
from onnx_ai_rt import PagedCache
from onnx_ai_rt.reference import attention

ROUNDING = "rounding alone"
_HEADS = {"q_heads": 8, "kv_heads": 2}


@dataclass(frozen=True)
class Case:
    """A row, its queries multiplied by `sharpness`: large scores make a softmax of few keys."""

    title: str
    row: Row
    sharpness: float = 1.0


def cases() -> tuple[Case, ...]:
    """Prefill, decode and sharp scores by type; decode over pages by format."""
    found = []
    for dtype in ("float32", "float16", "bfloat16"):
        prefill = Row("accuracy", "", "attention", Shape(256, 256, **_HEADS), dtype, causal=True)
        decode = Row("accuracy", "", "attention", Shape(1, 4096, **_HEADS), dtype)
        found += [
            Case(f"{dtype}, prefill causal S=T=256", prefill),
            Case(f"{dtype}, the same, scores x 16", prefill, 16.0),
            Case(f"{dtype}, decode T=4096", decode),
        ]
    for dtype, page_format in (("float32", "INT8"), ("float32", "INT4"), ("bfloat16", "BFLOAT16")):
        row = Row("accuracy", "", "paged", Shape(4, 2052, **_HEADS), dtype, causal=True, page_format=page_format)
        found.append(Case(f"{dtype}, PagedAttention S=4, L=2048, {page_format} pages", row))
    return tuple(found)


def run_cases(chosen: Sequence[Case], targets: Sequence[str]) -> list[dict[str, Any]]:
    """Errors of each case: {contender: [root mean square, largest]}, relative to the root mean square of Y."""
    results = []
    for case in chosen:
        print(f"accuracy: {case.title}", file=sys.stderr, flush=True)
        problem = Problem(case.row)
        problem.query *= np.float32(case.sharpness)
        expected = _expected(problem)
        errors = {ROUNDING: _error(expected.astype(problem.dtype), expected)}
        for name, make in _makers(problem, targets):
            try:
                contender = make()
            except Unavailable:
                continue
            contender.before()
            contender.run()
            assert contender.output is not None
            errors[name] = _error(contender.output(), expected)
        results.append({"title": case.title, "errors": errors})
    onnx_ai_rt.choose_cpu_target("")
    return results


def _makers(problem: Problem, targets: Sequence[str]) -> Iterator[tuple[str, Callable[[], Contender]]]:
    for target in targets:
        yield target, lambda target=target: next(ours.contenders(problem, 1, (target,), False))  # type: ignore[misc]
    if problem.row.kind == "attention":  # others have other pages
        peers = dict([*ort_peers.makers(problem, 1), *torch_peer.makers(problem, 1)])
        for title, name in (("ORT own", ORT), ("torch", f"torch {problem.row.dtype}")):
            if name in peers:
                yield title, peers[name]


def _expected(problem: Problem) -> Array:
    """Y in double, of what the inputs hold after rounding to their types; pages decoded by the cache's own reader."""
    row, typed = problem.row, problem.typed
    key, value = typed["K"], typed["V"]
    past: dict[str, Any] = {}
    if row.kind == "paged":
        step = ours.new_tokens(problem)
        key, value = step["K"], step["V"]
        past_key, past_value = PagedCache(problem.pages).to_dense()
        past = {"past_key": past_key.astype(np.float64), "past_value": past_value.astype(np.float64)}
    parts = [array.astype(np.float64) for array in (typed["Q"], key, value)]
    return attention(*parts, **past, is_causal=int(row.causal))[0]


def _error(got: Array, expected: Array) -> list[float]:
    difference = got.astype(np.float64) - expected
    scale = np.sqrt(np.mean(expected**2))
    return [float(np.sqrt(np.mean(difference**2)) / scale), float(np.abs(difference).max() / scale)]


def accuracy_table(results: Sequence[dict[str, Any]]) -> Table:
    """Root mean square and largest error of each case, for everything that ran it."""
    names = list(dict.fromkeys(name for result in results for name in result["errors"]))
    table = [["type and case (rms error / largest, relative to the rms of Y)", *names]]
    for result in results:
        errors = result["errors"]
        cells = [f"{errors[n][0]:.1e} / {errors[n][1]:.1e}" if n in errors else "-" for n in names]
        table.append([result["title"], *cells])
    return table
