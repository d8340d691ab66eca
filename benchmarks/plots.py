"""Figures of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ours import OURS
from benchmarks.report import peers, short


def draw(folder: Path, table: dict[str, Any] | None, growth: dict[str, Any] | None) -> list[Path]:
    """Writes the figures that the results allow, and says which; none without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if table is not None:
        written.append(_ratios(folder / "ratios.png", table["rows"]))
    if growth is not None:
        decode = [s for s in growth["sweeps"] if s["name"].startswith("decode")]
        others = [s for s in growth["sweeps"] if not s["name"].startswith("decode")]
        written.append(_context(folder / "context_length.png", decode))
        written.append(_growth(folder / "growth.png", others))
    return written


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=110)
    return path


def _ratios(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Every peer's time over ours, row by row; one thread."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.42 * len(rows) + 1.6), layout="constrained")
    names = list(dict.fromkeys(name for r in rows for name in peers(_first_run(r))))
    for y, result in enumerate(rows):
        run = _first_run(result)
        if OURS not in run["contenders"]:
            continue
        own = run["contenders"][OURS]["median_ms"]
        for name, c in peers(run).items():
            number = names.index(name)
            axes.plot(c["median_ms"] / own, y, "osD^v<>P*X"[number % 10], color=f"C{number % 10}", label=short(name))
        limit = max(run["floors_ms"].values()) / own
        axes.plot(limit, y, "|", color="black", markersize=14, label="limit of the machine")
    axes.axvline(1.0, color="gray", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [r["title"] for r in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("time over ours, one thread (right of 1: slower)")
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.grid(axis="x", alpha=0.3, which="both")
    return _save(figure, path)


def _first_run(result: dict[str, Any]) -> dict[str, Any]:
    run: dict[str, Any] = next(iter(result["runs"].values()))
    return run


def _context(path: Path, decode: Sequence[dict[str, Any]]) -> Path:
    """Time of a decode step against the context length."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
    drawn = set()
    for number, sweep in enumerate(decode):
        kind = sweep["name"].removeprefix("decode_")
        for name in dict.fromkeys(name for p in sweep["points"] for name in p["median_ms"]):
            # The same float32 torch stands beside every sweep.
            if name != OURS and name in drawn:
                continue
            drawn.add(name)
            points = [(p["value"], p["median_ms"][name]) for p in sweep["points"] if name in p["median_ms"]]
            label = f"ours, {kind} pages" if kind.isupper() else f"ours, {kind}"
            gray = "0.3" if name.startswith("torch") else "0.6"
            style = {"color": f"C{number}", "marker": "o"} if name == OURS else {"color": gray, "linestyle": "--"}
            axes.plot(*zip(*points, strict=True), label=label if name == OURS else name, **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("context length T, tokens")
    axes.set_ylabel("milliseconds for one token, one thread")
    axes.set_title("Hq=32, Hkv=8, D=128", fontsize=10)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return _save(figure, path)


def _growth(path: Path, sweeps: Sequence[dict[str, Any]]) -> Path:
    """Time, in the upper row, and time for each operation, in the lower one, against each size."""
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(2, len(sweeps), figsize=(3.4 * len(sweeps), 5.4), layout="constrained", squeeze=False)
    for column, sweep in enumerate(sweeps):
        for name in dict.fromkeys(name for p in sweep["points"] for name in p["median_ms"]):
            points = [p for p in sweep["points"] if name in p["median_ms"]]
            sizes = [p["value"] for p in points]
            times = [p["median_ms"][name] for p in points]
            per_work = [p["median_ms"][name] / p["operations"] * 1e9 for p in points]
            for axes, values in zip(grid[:, column], (times, per_work), strict=True):
                axes.plot(sizes, values, marker="o" if name == OURS else ".", label=name)
        for axes, unit in zip(grid[:, column], ("ms", "ms for each GFLOP"), strict=True):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel(sweep["size"])
            axes.set_ylabel(unit)
            axes.grid(alpha=0.3)
        grid[0, column].set_title(sweep["title"].split(", ")[0], fontsize=9)
    grid[0, 0].legend(fontsize=7)
    return _save(figure, path)
