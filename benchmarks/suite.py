"""Runs rows with all their contenders and makes plain data of the results."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ai_rt
from benchmarks import limits, ort_peers, ours, torch_peer
from benchmarks.contender import Contender, Unavailable
from benchmarks.problem import Problem
from benchmarks.rows import MEMCPY, Row
from benchmarks.timing import Effort, Samples, measure


@dataclass(frozen=True)
class Settings:
    """What to run, and how."""

    effort: Effort
    thread_counts: tuple[int, ...]
    targets: tuple[str, ...]  # of ours; the first is the one that counts
    kernel_alone: bool = False
    peers: tuple[Any, ...] = (ort_peers, torch_peer)  # modules with makers(problem, threads)


class WrongResult(Exception):
    """A contender computed something else."""


def run_rows(rows: Sequence[Row], settings: Settings, ceilings: dict[str, Any]) -> list[dict[str, Any]]:
    """Results of rows, with progress on standard error."""
    results = []
    for number, row in enumerate(rows, start=1):
        start = time.perf_counter()
        print(f"[{number}/{len(rows)}] {row.title} ...", end=" ", file=sys.stderr, flush=True)
        results.append(run_row(row, settings, ceilings))
        print(f"{time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        gc.collect()
    return results


def run_row(row: Row, settings: Settings, ceilings: dict[str, Any]) -> dict[str, Any]:
    """Times, floors and ratios of one row, for each number of threads."""
    problem = Problem(row)
    contenders, missing = _set_up(problem, settings)
    errors = {id(contender): check(contender, problem) for contender in contenders}
    samples = measure(contenders, settings.effort)
    onnx_ai_rt.choose_cpu_target(settings.targets[0])
    result: dict[str, Any] = {
        "name": row.name,
        "title": row.title,
        "row": asdict(row),
        "operations": limits.operations(problem),
        "bytes": limits.bytes_moved(problem),
        "kernels": _paths(contenders),
        "unavailable": missing,
        "runs": {},
    }
    for threads in settings.thread_counts:
        mine = [s for s in samples if s.contender.threads == threads or s.contender.name == MEMCPY]
        result["runs"][str(threads)] = _summary(problem, mine, threads, settings, ceilings, errors)
    return result


def _set_up(problem: Problem, settings: Settings) -> tuple[list[Contender], dict[str, str]]:
    contenders: list[Contender] = []
    missing: dict[str, str] = {}
    for threads in settings.thread_counts:
        try:
            contenders += ours.contenders(problem, threads, settings.targets, settings.kernel_alone)
        except Unavailable as reason:
            missing[ours.OURS] = str(reason)
        for peer in settings.peers:
            for name, make in peer.makers(problem, threads):
                try:
                    contenders.append(make())
                except Unavailable as reason:
                    missing[name] = str(reason)
        contenders += limits.contenders(problem, threads)
    return contenders, missing


def check(contender: Contender, problem: Problem) -> float | None:
    """Relative error of what a contender computes. Raises WrongResult beyond its tolerance."""
    contender.before()
    contender.run()
    if contender.output is None:
        return None
    error = problem.error(contender.output())
    if not error <= contender.tolerance:
        raise WrongResult(
            f"{problem.row.name}: {contender.name}: relative error {error:.2g}, expected at most {contender.tolerance}"
        )
    return error


def _paths(contenders: Iterable[Contender]) -> list[str]:
    """The kernels that one run of each of ours takes, as kernel_runs() names them."""
    found: dict[str, None] = {}
    for contender in contenders:
        if contender.target and contender.name != ours.KERNEL:
            contender.before()
            onnx_ai_rt.kernel_runs(reset=True)
            contender.run()
            found |= {f"{run.operator} {run.path} {run.target}": None for run in onnx_ai_rt.kernel_runs()}
    return list(found)


def _summary(
    problem: Problem,
    samples: list[Samples],
    threads: int,
    settings: Settings,
    ceilings: dict[str, Any],
    errors: dict[int, float | None],
) -> dict[str, Any]:
    by_name = {s.contender.name: s for s in samples}
    arithmetic, moved = _floors(problem, by_name, threads, settings.targets[0], ceilings)
    summary: dict[str, Any] = {
        "floors_ms": {"arithmetic": arithmetic, "bytes": moved},
        "contenders": {
            name: {
                "median_ms": s.median,
                "quartiles_ms": s.quartiles,
                "samples_ms": s.milliseconds,
                "error": errors[id(s.contender)],
                "target": s.contender.target,
            }
            for name, s in by_name.items()
        },
        "ratios": {},
        "marks": [],
    }
    own = by_name.get(ours.OURS)
    if own is None:
        return summary
    summary["fraction_of_limit"] = max(arithmetic, moved) / own.median
    # Ours over every other, those on other instruction sets included: round by round.
    summary["ratios"] = {name: own.ratio_to(s) for name, s in by_name.items() if s is not own}
    for mark in problem.row.marks:
        if mark.reference in summary["ratios"]:
            reached = summary["ratios"][mark.reference][0]
            summary["marks"].append({**asdict(mark), "reached": reached, "met": reached <= mark.at_most})
    return summary


def _floors(
    problem: Problem, by_name: dict[str, Samples], threads: int, target: str, ceilings: dict[str, Any]
) -> tuple[float, float]:
    """Milliseconds of the row's arithmetic and of its bytes."""
    arithmetic = limits.operations(problem) / limits.rate(ceilings, target, threads, limits.arithmetic_type(problem))
    for name in (limits.READING, MEMCPY):
        if name in by_name:  # measured in the same rounds, with as many bytes
            share = 1 if by_name[name].contender.threads == threads else threads
            return arithmetic * 1e3, by_name[name].median / share
    size = limits.bytes_moved(problem)
    place = "last-level cache" if size < ceilings["last_level_cache"] else "memory"
    return arithmetic * 1e3, size / ceilings["reading"][f"{place}, {threads} threads"] * 1e3
