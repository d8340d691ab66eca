"""The two floors of a row: its arithmetic at the rate of this CPU, its bytes at the speed of its memory."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import onnx_ai_rt
from benchmarks.contender import Contender
from benchmarks.problem import Problem, aligned
from benchmarks.rows import MEMCPY
from onnx_ai_rt import _core

READING = "reading alone"

# Arithmetic of a type, as products of another: a float16 number is the sum of two of bfloat16, a float of three, and
# codes are exact in bfloat16.
_IN_BFLOAT16 = {"bfloat16": 1, "float16": 2, "codes": 3}


def operations(problem: Problem) -> float:
    """Floating-point operations of both products over the pairs that take part; the exponentials are not counted."""
    s = problem.row.shape
    return 0.0 if problem.row.kind == "quantize" else 4.0 * s.batch * s.q_heads * s.head_size * problem.visible_pairs()


def bytes_moved(problem: Problem) -> int:
    """Bytes that must be read or written once: Q, keys, values, mask, Y; both caches where there is a present. The
    output of `quantize`, a quarter of its input and less, is not counted."""
    row, s = problem.row, problem.row.shape
    if row.kind == "quantize":
        return problem.pages.nbytes
    size = problem.dtype.itemsize
    rows = 2 * s.batch * s.q_heads * s.queries * s.head_size
    per_key = 2 * s.batch * s.kv_heads * s.head_size
    if row.kind == "paged":
        return rows * size + per_key * s.queries * size + problem.pages.nbytes
    cache = per_key * (s.keys + (s.keys if row.past else 0))
    return (rows + cache) * size + (problem.mask.nbytes if problem.mask is not None else 0)


def contenders(problem: Problem, threads: int) -> Iterator[Contender]:
    """What a row can hardly be faster than: reading as many bytes, or copying them where the row copies."""
    row = problem.row
    if (row.kind == "quantize" or row.past) and threads == 1:
        source = problem.pages if row.kind == "quantize" else aligned((bytes_moved(problem) // 2,), np.uint8)
        yield Contender(MEMCPY, 1, functools.partial(np.copyto, aligned(source.shape, np.uint8), source))
    # Prefill is bound by its arithmetic by far.
    if row.past or row.shape.queries > 64:
        return
    data = problem.pages if row.kind == "quantize" else aligned((bytes_moved(problem),), np.uint8)
    passes = max(1, (1 << 22) // data.nbytes)  # so many that starting threads costs little
    yield Contender(READING, threads, functools.partial(_core.reading_seconds, data, passes, threads))


def arithmetic_type(problem: Problem) -> str:
    """What `rate` takes."""
    return "codes" if problem.row.page_format in ("INT8", "INT4") else problem.row.dtype


def rate(ceilings: dict[str, Any], target: str, threads: int, kind: str) -> float:
    """Operations a second that this CPU reaches for a type, by the fastest way that was measured."""
    rates = ceilings["arithmetic"][f"{target}, {threads} threads"]
    best = max(value for name, value in rates.items() if "float32" in name)
    if kind in _IN_BFLOAT16:
        best = max([best, *(value / _IN_BFLOAT16[kind] for name, value in rates.items() if "bfloat16" in name)])
    return float(best)


def measure_ceilings(targets: tuple[str, ...], thread_counts: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """Rates of arithmetic (operations a second) and of reading (bytes a second, from a half of the last-level cache
    and from memory), each the best of some tries."""
    arithmetic: dict[str, dict[str, float]] = {}
    for target in targets:
        onnx_ai_rt.choose_cpu_target(target)
        for threads in thread_counts:
            rates = {
                f"multiply-adds in registers, {kind}": _best(
                    functools.partial(_core.arithmetic_rate, kind, 20000, threads), seconds
                )
                for kind in ("float32", "bfloat16")
            }
            arithmetic[f"{target}, {threads} threads"] = {**rates, **_torch_rates(target, targets, threads, seconds)}
    llc = last_level_cache()
    reading = {}
    for threads in thread_counts:
        for place, size in (("last-level cache", llc // 2), ("memory", 8 * llc)):
            data = aligned((size,), np.uint8)
            run = functools.partial(_core.reading_seconds, data, max(1, (1 << 24) // size), threads)
            reading[f"{place}, {threads} threads"] = size / -_best(lambda run=run: -run(), seconds)
    return {"arithmetic": arithmetic, "reading": reading, "last_level_cache": llc}


def _best(run: Any, seconds: float) -> float:
    end = time.perf_counter() + seconds
    values = [run()]
    while time.perf_counter() < end:
        values.append(run())
    return float(max(values))


def _torch_rates(target: str, targets: tuple[str, ...], threads: int, seconds: float) -> dict[str, float]:
    """Products of large matrices by torch, which knows instructions that ours may not; for the best target only."""
    try:
        import torch
    except ImportError:
        return {}
    if target != _core.supported_cpu_targets()[0]:
        return {}
    torch.set_num_threads(threads)
    size, rates = 1024, {}
    for kind in ("float32", "bfloat16"):
        a, b = (torch.randn(size, size).to(getattr(torch, kind)) for _ in range(2))

        def once(a: Any = a, b: Any = b) -> float:
            start = time.perf_counter()
            torch.mm(a, b)
            return float(2 * size**3 / (time.perf_counter() - start))

        once()
        rates[f"torch matmul, {kind}"] = _best(once, seconds)
    return rates


def last_level_cache() -> int:
    """Bytes of the largest cache; 32 MiB where the system does not tell."""
    return max((size for _, _, size in caches()), default=1 << 25)


def caches() -> list[tuple[int, str, int]]:
    """(level, type, bytes) of the first CPU's caches."""
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            found.append((int(level), kind, int(size.rstrip("KM")) << (20 if size.endswith("M") else 10)))
        except (OSError, ValueError):
            continue
    return found
