"""What a result depends on, to be kept beside it."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.limits import caches
from onnx_ai_rt.cli.info import collect


def cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, Any]:
    """The machine, the system and the versions of everything that takes part."""
    info = collect()
    versions = dict(info["versions"])
    for name in ("torch", "openvino"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "revision": _revision(),
        "cpu": info["cpu"],
        "cores": cores(),
        "has_amx": any(feature.startswith("amx_bf16") for feature in info["cpu"]["features"]),
        "caches": [f"L{level} {kind} {size // 1024} KiB" for level, kind, size in caches()],
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "platform": info["platform"],
        "versions": versions,
        "load_average": load_average(),
    }


def load_average() -> float:
    """Processes that want to run, averaged over the last minute."""
    return round(os.getloadavg()[0], 2)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _revision() -> str:
    """Commit of the checkout, with a + where files differ from it; "" outside of one."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def warn_if_busy() -> None:
    """Says so when other processes are likely to disturb."""
    if load_average() > 0.7 * cores():
        print(f"warning: the machine is busy (load {load_average()}); times will be noisy", file=sys.stderr)
