"""Memory that one run needs beside its inputs and outputs, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks.rows import Row, Shape


def extra_bytes(row: Row, threads: int, contender: str) -> int | None:
    """Peak memory of a contender over its inputs and outputs in bytes; None where it cannot run, or the system does not
    tell."""
    request = json.dumps({"row": asdict(row), "threads": threads, "contender": contender})
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", request],
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
    )
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else None


def from_plain(data: dict[str, object]) -> Row:
    """A row from what `asdict` made of it; marks are left out."""
    return Row(**{**data, "shape": Shape(**data["shape"]), "marks": ()})  # type: ignore[arg-type]


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Bytes by which the resident set grows at most inside the block, in the list afterwards."""
    grown: list[int] = []
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    yield grown
    grown.append(_status("VmHWM") - before)


def _measure(row: Row, threads: int, name: str) -> int:
    from benchmarks import ort_peers, ours, torch_peer
    from benchmarks.problem import Problem
    from benchmarks.rows import shrunk

    def run_once(problem: Problem) -> None:
        if name == ours.OURS:
            contender = next(ours.contenders(problem, threads, ("",), False))
        else:
            makers = [*ort_peers.makers(problem, threads), *torch_peer.makers(problem, threads)]
            contender = dict(makers)[name]()
        if name != ours.OURS:  # a session has run once when it is there
            contender.before()
            contender.run()

    run_once(Problem(shrunk(row)))  # what a process pays once: pools, code, allocators
    problem = Problem(row)
    inputs = [problem.query, problem.key, problem.value, *problem.typed.values(), problem.mask]
    if row.kind == "paged":
        inputs.append(problem.pages)
    with _peak() as grown:
        run_once(problem)
    outputs = problem.query.size * problem.dtype.itemsize
    if row.past:
        outputs += 2 * problem.key.size * problem.dtype.itemsize
    return max(0, grown[0] - outputs)


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    print(_measure(from_plain(order["row"]), order["threads"], order["contender"]))
