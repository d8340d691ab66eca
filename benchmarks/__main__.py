"""Command line: `python -m benchmarks run` measures, `python -m benchmarks docs` documents what was measured."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import onnx_ai_rt
from benchmarks import accuracy, docs, environment, growth, limits, ort_peers, plots, report, suite, timing, torch_peer
from benchmarks.rows import ROWS, Row, shrunk

_ROOT = Path(__file__).resolve().parent.parent
_RESULTS = _ROOT / "benchmarks" / "results"
_PARTS = ("table", "growth", "accuracy")


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    return int(args.command(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="measure; tables to standard output, progress to standard error")
    run.set_defaults(command=_run)
    run.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS, help="what to measure (default: all)")
    run.add_argument("--quick", action="store_true", help="fewer rounds and shorter sweeps: under two minutes")
    run.add_argument("--smoke", action="store_true", help="tiny sizes, two rounds: only shows that everything runs")
    run.add_argument("--rows", nargs="+", metavar="NAME", help=f"only these of: {', '.join(r.name for r in ROWS)}")
    run.add_argument(
        "--target",
        nargs="+",
        metavar="NAME",
        help=f"instruction sets of ours, the first of which counts (default: the best), of: "
        f"{', '.join(onnx_ai_rt.cpu_info().targets)}",
    )
    run.add_argument("--threads", nargs="+", type=int, help="numbers of threads (default: 1 and all cores)")
    run.add_argument("--kernel-alone", action="store_true", help="also measure our kernels without a session")
    run.add_argument("--details", action="store_true", help="also print every contender of every row")
    run.add_argument(
        "--peer",
        nargs="+",
        default=[],
        metavar="MODULE",
        help="further peers: modules with makers(problem, threads), for example benchmarks.openvino_peer",
    )
    run.add_argument("--output", type=Path, default=_RESULTS, help="folder for JSON and figures (default: %(default)s)")
    write = commands.add_parser("docs", help="refresh docs/performance.md and docs/figures from stored results")
    write.set_defaults(command=_docs)
    write.add_argument("--results", type=Path, default=_RESULTS, help="folder of the results (default: %(default)s)")
    write.add_argument("--docs", type=Path, default=_ROOT / "docs", help="folder to write to (default: %(default)s)")
    return parser


def _run(args: argparse.Namespace) -> int:
    chosen = [row for row in ROWS if args.rows is None or row.name in args.rows]
    unknown = set(args.rows or ()) - {row.name for row in ROWS}
    if unknown:
        sys.exit(f"no row named {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in ROWS)}")
    environment.warn_if_busy()
    here = environment.describe()
    args.output.mkdir(parents=True, exist_ok=True)
    if "table" in args.parts:
        _save(args.output / "table.json", {"environment": here, **_table(args, chosen, here)})
    if "growth" in args.parts:
        _save(args.output / "growth.json", {"environment": here, **_growth(args)})
    if "accuracy" in args.parts:
        _save(args.output / "accuracy.json", {"environment": here, **_accuracy(args)})
    for path in plots.draw(args.output, *(_load(args.output).get(part) for part in ("table", "growth"))):
        print(f"figure {path}", file=sys.stderr)
    return 0


def _table(args: argparse.Namespace, rows: list[Row], here: dict[str, Any]) -> dict[str, Any]:
    settings = suite.Settings(
        effort=timing.SMOKE if args.smoke else timing.QUICK if args.quick else timing.FULL,
        thread_counts=_thread_counts(args),
        targets=tuple(args.target or here["cpu"]["targets"][:1]),
        kernel_alone=args.kernel_alone,
        peers=(ort_peers, torch_peer, *map(importlib.import_module, args.peer)),
    )
    print("measuring the machine's limits", file=sys.stderr, flush=True)
    seconds = 0.0 if args.smoke else 0.1 if args.quick else 1.0
    ceilings = limits.measure_ceilings(settings.targets, settings.thread_counts, seconds)
    results = suite.run_rows([shrunk(row) for row in rows] if args.smoke else rows, settings, ceilings)
    print("\n".join(report.environment_lines(here)), end="\n\n")
    _print(report.ceiling_table(ceilings))
    _print(report.main_table(results, here["has_amx"]))
    _print(report.scaling_table(results))
    _print(report.target_table(results))
    if args.details:
        _print(report.contender_table(results))
    return {"ceilings": ceilings, "rows": results, "load_at_the_end": environment.load_average()}


def _growth(args: argparse.Namespace) -> dict[str, Any]:
    chosen = growth.sweeps(args.quick or args.smoke)
    if args.smoke:
        chosen = tuple(growth.shortened(sweep) for sweep in chosen)
    if args.smoke:
        effort = timing.SMOKE
    elif args.quick:
        effort = timing.Effort(rounds=3, turn=0.01, patience=1.0, least=1)
    else:
        effort = timing.Effort(rounds=7, turn=0.02, patience=4.0, least=1)
    thorough = not (args.quick or args.smoke)
    result = {
        "sweeps": growth.run_sweeps(chosen, effort, with_memory=thorough),
        "long_prefill": [] if args.smoke else growth.long_prefill_memory(args.quick, _thread_counts(args)),
    }
    _print(growth.growth_table(result["sweeps"]))
    _print(growth.memory_table(result["long_prefill"]))
    return result


def _accuracy(args: argparse.Namespace) -> dict[str, Any]:
    chosen = accuracy.cases()[:1] if args.smoke else accuracy.cases()
    result = {"cases": accuracy.run_cases(chosen, args.target or onnx_ai_rt.cpu_info().targets)}
    _print(accuracy.accuracy_table(result["cases"]))
    return result


def _thread_counts(args: argparse.Namespace) -> tuple[int, ...]:
    return tuple(args.threads or sorted({1, environment.cores()}))


def _print(table: report.Table) -> None:
    """Nothing where there are no lines."""
    if len(table) > 1:
        print(report.as_text(table), end="\n\n")


def _save(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps(result, indent=1))
    print(f"results {path}", file=sys.stderr)


def _load(folder: Path) -> dict[str, Any]:
    """Results of the parts that were measured."""
    paths = {part: folder / f"{part}.json" for part in _PARTS}
    return {part: json.loads(path.read_text()) for part, path in paths.items() if path.exists()}


def _docs(args: argparse.Namespace) -> int:
    results = _load(args.results)
    if not results:
        sys.exit(f"no results in {args.results}; python -m benchmarks run makes them")
    written = docs.rewrite(args.docs / "performance.md", docs.sections(results))
    figures = plots.draw(args.docs / "figures", results.get("table"), results.get("growth"))
    print("sections", ", ".join(written), "and figures", ", ".join(path.name for path in figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
