"""Tables of results, for people: plain text and Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.limits import READING
from benchmarks.ours import KERNEL, OURS
from benchmarks.rows import ORT, SCALING_MARK, SCALING_ROWS, TORCH

Table = list[list[str]]

_HEAD = [
    "work",
    "thr",
    "limit",
    "ours (quartiles)",
    "best peer",
    "torch f32",
    "ORT own",
    "/torch",
    "/ORT",
    "mark",
    "of limit",
]


def milliseconds(value: float) -> str:
    """Three digits, in milliseconds."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.1 else f"{value:.4f}"


def peers(run: dict[str, Any]) -> dict[str, Any]:
    """Contenders that are neither ours nor a limit."""
    skip = (OURS, KERNEL, READING)
    return {name: c for name, c in run["contenders"].items() if not c["target"] and name not in skip}


def main_table(results: Iterable[dict[str, Any]], has_amx: bool) -> Table:
    """A line for each row and number of threads."""
    table = [_HEAD]
    for result in results:
        for threads, run in result["runs"].items():
            if OURS in run["contenders"]:
                table.append(_line(result, threads, run, has_amx))
            else:
                table.append([result["title"], threads, *["-"] * (len(_HEAD) - 2)])
    return table


def _line(result: dict[str, Any], threads: str, run: dict[str, Any], has_amx: bool) -> list[str]:
    own, others = run["contenders"][OURS], peers(run)
    low, high = own["quartiles_ms"]

    def time_of(name: str) -> str:
        return milliseconds(others[name]["median_ms"]) if name in others else "-"

    def ratio_to(name: str) -> str:
        return f"{run['ratios'][name][0]:.2f}" if name in others else "-"

    best = min(others, key=lambda name: others[name]["median_ms"], default="")
    return [
        result["title"],
        threads,
        milliseconds(max(run["floors_ms"].values())),
        f"{milliseconds(own['median_ms'])} ({milliseconds(low)}-{milliseconds(high)})",
        f"{milliseconds(others[best]['median_ms'])} {short(best)}" if best else "-",
        time_of(TORCH),
        time_of(ORT),
        ratio_to(TORCH),
        ratio_to(ORT),
        ", ".join(mark_text(mark) for mark in run["marks"] if has_amx or not mark["needs_amx"]) or "-",
        f"{run['fraction_of_limit']:.0%}",
    ]


def short(name: str) -> str:
    """A contender's name for a narrow column."""
    for long, brief in (("GroupQueryAttention", "GQA"), ("bfloat", "bf"), ("float", "f")):
        name = name.replace(long, brief)
    return name


def mark_text(mark: dict[str, Any]) -> str:
    """The mark, and whether it is met."""
    verdict = "met" if mark["met"] else f"missed ({mark['reached']:.2f})"
    return f"<= {mark['at_most']:.3g} of {short(mark['reference'])}: {verdict}"


def scaling_table(results: Iterable[dict[str, Any]]) -> Table:
    """One thread's time over that of all cores."""
    table = [["work", "one thread", "all cores", "speed-up", "mark"]]
    for result in results:
        counts = list(result["runs"])
        if result["name"] not in SCALING_ROWS or len(counts) < 2:
            continue
        one, many = (result["runs"][count]["contenders"].get(OURS) for count in (counts[0], counts[-1]))
        if one and many:
            speedup = one["median_ms"] / many["median_ms"]
            mark = f">= {SCALING_MARK}: {'met' if speedup >= SCALING_MARK else 'missed'}" if counts[-1] == "2" else "-"
            times = [milliseconds(x["median_ms"]) for x in (one, many)]
            table.append([result["title"], *times, f"{speedup:.2f}", mark])
    return table


def contender_table(results: Iterable[dict[str, Any]]) -> Table:
    """Every contender of every row: milliseconds, quartiles, our time over its, its relative error."""
    table = [["work", "thr", "contender", "ms", "quartiles", "ours / it", "error"]]
    for result in results:
        for threads, run in result["runs"].items():
            for name, c in run["contenders"].items():
                low, high = c["quartiles_ms"]
                ratio = run["ratios"].get(name)
                kernels = [k for k in result["kernels"] if c["target"] and k.endswith(f" {c['target']}")]
                if kernels and name != KERNEL:
                    name = f"{name} [{', '.join(kernels)}]"
                table.append(
                    [
                        result["title"],
                        threads,
                        name,
                        milliseconds(c["median_ms"]),
                        f"{milliseconds(low)}-{milliseconds(high)}",
                        f"{ratio[0]:.2f}" if ratio else "-",
                        f"{c['error']:.1e}" if c["error"] is not None else "-",
                    ]
                )
    return table


def target_table(results: Iterable[dict[str, Any]]) -> Table:
    """Ours on each instruction set that was measured, over ORT's own Attention; one thread."""
    rows = [(result, result["runs"][next(iter(result["runs"]))]) for result in results]
    targets = list(dict.fromkeys(c["target"] for _, run in rows for c in run["contenders"].values() if c["target"]))
    if len(targets) < 2:
        return []
    table = [["work", *(f"{target} ms" for target in targets), *(f"{target} / ORT own" for target in targets)]]
    for result, run in rows:
        times = {c["target"]: c["median_ms"] for name, c in run["contenders"].items() if c["target"] and name != KERNEL}
        reference = run["contenders"].get(ORT)
        ratios = [f"{times[t] / reference['median_ms']:.2f}" if reference and t in times else "-" for t in targets]
        table.append([result["title"], *(milliseconds(times[t]) if t in times else "-" for t in targets), *ratios])
    return table


def ceiling_table(ceilings: dict[str, Any]) -> Table:
    """Measured limits of the machine."""
    table = [["limit", "on", "measured"]]
    for place, rates in ceilings["arithmetic"].items():
        table += [[name, place, f"{rate / 1e9:.0f} GFLOP/s"] for name, rate in rates.items()]
    for place, rate in ceilings["reading"].items():
        where, threads = place.split(", ")
        table.append([f"reading, {where}", threads, f"{rate / 1e9:.1f} GB/s"])
    return [[cell.replace("1 threads", "1 thread") for cell in line] for line in table]


def environment_lines(environment: dict[str, Any]) -> list[str]:
    """The machine in a few lines."""
    cpu, versions = environment["cpu"], environment["versions"]
    names = ("onnxruntime", "torch", "openvino", "numpy", "python")
    known = ", ".join(f"{name} {versions[name]}" for name in names if versions.get(name, "not") != "not installed")
    return [
        f"{cpu['model'] or 'CPU'}, {environment['cores']} cores, {environment['memory_gib']} GiB, "
        f"caches: {', '.join(environment['caches'])}",
        f"instruction sets: {' '.join(cpu['features'])}; compiled for: {' '.join(cpu['targets'])}",
        f"{known}; {environment['platform']}",
        f"{environment['date']}, revision {environment['revision'] or 'unknown'}, "
        f"load at the start {environment['load_average']}",
    ]


def as_text(table: Sequence[Sequence[str]]) -> str:
    """Columns side by side."""
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def as_markdown(table: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    head, *lines = table
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])
