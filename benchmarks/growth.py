"""How time and memory grow with each size of the problem: they should follow the work."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import limits, memory, ours
from benchmarks.contender import Unavailable
from benchmarks.ort_peers import makers as ort_makers
from benchmarks.problem import Problem
from benchmarks.report import Table, milliseconds
from benchmarks.rows import ORT, TORCH, Row, Shape
from benchmarks.timing import Effort, measure
from benchmarks.torch_peer import makers as torch_makers

EXTRA_MEMORY_MARK = 16 << 20  # bytes a thread


@dataclass(frozen=True)
class Sweep:
    """Rows that differ in one size. Peers are left out beyond `peer_limit`, where they take long or much memory."""

    name: str
    title: str
    size: str
    points: tuple[tuple[int, Row], ...]
    peer_limit: int


def _row(shape: Shape, dtype: str = "float32", *, causal: bool = False, page_format: str = "") -> Row:
    kind = "paged" if page_format else "attention"
    return Row("growth", "growth", kind, shape, dtype, causal=causal or bool(page_format), page_format=page_format)


def _doubling(first: int, last: int) -> list[int]:
    return [first << i for i in range((last // first).bit_length())]


def sweeps(quick: bool) -> tuple[Sweep, ...]:
    """All sweeps; the quick ones end earlier."""
    contexts = _doubling(512, 16384 if quick else 65536)
    prompts = _doubling(512, 4096 if quick else 65536)
    batches = _doubling(1, 4 if quick else 16)
    heads = _doubling(4, 16 if quick else 64)
    queries = _doubling(1, 256 if quick else 4096)

    def decode(title: str, dtype: str, page_format: str = "") -> Sweep:
        new = 1 if page_format else 0
        points = tuple((t, _row(Shape(1, t + new), dtype, page_format=page_format)) for t in contexts)
        return Sweep(f"decode_{page_format or dtype}", title, "T", points, 1 << 16)

    return (
        decode("decode S=1, Hq=32, Hkv=8, D=128, float32", "float32"),
        decode("the same, bfloat16", "bfloat16"),
        decode("the same, PagedAttention over INT8 pages", "float32", "INT8"),
        Sweep(
            "prefill",
            "prefill causal S=T, Hq=4, Hkv=1, D=64, float32",
            "S=T",
            tuple((t, _row(Shape(t, t, 4, 1, 64), causal=True)) for t in prompts),
            4096,
        ),
        Sweep(
            "queries",
            "S queries on T=4096 keys, Hq=8, Hkv=2, D=64, float32",
            "S",
            tuple((s, _row(Shape(s, 4096, 8, 2, 64))) for s in queries),
            1024,
        ),
        Sweep(
            "heads",
            "Hq heads (Hkv = Hq/4), S=64, T=1024, D=64, float32",
            "Hq",
            tuple((h, _row(Shape(64, 1024, h, h // 4, 64))) for h in heads),
            64,
        ),
        Sweep(
            "batch",
            "B batch entries, S=64, T=1024, Hq=8, Hkv=2, D=64, float32",
            "B",
            tuple((b, _row(Shape(64, 1024, 8, 2, 64, batch=b))) for b in batches),
            16,
        ),
    )


def run_sweeps(chosen: Sequence[Sweep], effort: Effort, with_memory: bool) -> list[dict[str, Any]]:
    """Times on one thread, of ours and of torch and ORT's Attention where they take part, and memory of ours."""
    results = []
    for sweep in chosen:
        points = []
        for value, row in sweep.points:
            print(f"growth: {sweep.title}, {sweep.size}={value}", file=sys.stderr, flush=True)
            points.append(_point(value, row, effort, value <= sweep.peer_limit, with_memory))
        results.append({"name": sweep.name, "title": sweep.title, "size": sweep.size, "points": points})
    return results


def _point(value: int, row: Row, effort: Effort, with_peers: bool, with_memory: bool) -> dict[str, Any]:
    problem = Problem(row)
    makers = [(ours.OURS, lambda: next(ours.contenders(problem, 1, ("",), False)))]
    if with_peers:
        peers = [*torch_makers(problem, 1), *ort_makers(problem, 1)]
        makers += [(name, make) for name, make in peers if name == TORCH or (name == ORT and row.kind == "attention")]
    contenders = []
    for _, make in makers:
        with contextlib.suppress(Unavailable):  # bfloat16 in ORT, or torch that is not installed
            contenders.append(make())
    return {
        "value": value,
        "operations": limits.operations(problem),
        "bytes": limits.bytes_moved(problem),
        "median_ms": {s.contender.name: s.median for s in measure(contenders, effort)},
        "extra_bytes": memory.extra_bytes(row, 1, ours.OURS) if with_memory else None,
    }


def long_prefill_memory(quick: bool, thread_counts: Sequence[int]) -> list[dict[str, Any]]:
    """Extra memory of causal prefill at S=T=16384 (S=T=4096 when quick), where S x T floats of one head are 1 GiB."""
    length = 4096 if quick else 16384
    results = []
    for dtype in ("float32", "float16", "bfloat16"):
        for threads in thread_counts:
            print(f"memory: prefill S=T={length}, {dtype}, {threads} threads", file=sys.stderr, flush=True)
            extra = memory.extra_bytes(_row(Shape(length, length, 8, 2, 128), dtype, causal=True), threads, ours.OURS)
            results.append({"length": length, "dtype": dtype, "threads": threads, "extra_bytes": extra})
    return results


def growth_table(results: Sequence[dict[str, Any]]) -> Table:
    """Time of ours at each point, the rate at which it does the work, the peers' times and the extra memory."""
    table = [["sweep", "size", "ours ms", "GFLOP/s", "GB/s", "torch f32 ms", "ORT own ms", "extra MiB"]]
    for sweep in results:
        for point in sweep["points"]:
            times = point["median_ms"]
            own = times.get(ours.OURS)
            extra = point["extra_bytes"]
            table.append(
                [
                    sweep["title"],
                    f"{sweep['size']}={point['value']}",
                    milliseconds(own) if own else "-",
                    f"{point['operations'] / own / 1e6:.0f}" if own else "-",
                    f"{point['bytes'] / own / 1e6:.1f}" if own else "-",
                    *(milliseconds(times[name]) if name in times else "-" for name in (TORCH, ORT)),
                    f"{extra / 2**20:.1f}" if extra is not None else "-",
                ]
            )
    return table


def memory_table(results: Sequence[dict[str, Any]]) -> Table:
    """Extra memory of the long prefill, with its mark."""
    table = [["causal prefill, Hq=8, Hkv=2, D=128", "threads", "extra MiB", "mark"]]
    for entry in results:
        extra, limit = entry["extra_bytes"], EXTRA_MEMORY_MARK * entry["threads"]
        text = "-" if extra is None else f"{extra / 2**20:.1f}"
        verdict = "-" if extra is None else "met" if extra < limit else "missed"
        title = f"S=T={entry['length']}, {entry['dtype']}"
        table.append([title, str(entry["threads"]), text, f"< {limit >> 20}: {verdict}"])
    return table


def shortened(sweep: Sweep) -> Sweep:
    """The first two points only."""
    return replace(sweep, points=sweep.points[:2])
