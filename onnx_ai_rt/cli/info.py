"""Print versions, the CPU's features, the chosen instruction set and the registered operators with their types."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from typing import Any


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace) -> int:
    info = collect()
    print(json.dumps(info, indent=2) if args.json else as_text(info))
    return 0


def collect() -> dict[str, Any]:
    """Everything that ``info`` shows, ready for JSON."""
    import platform
    from dataclasses import asdict

    from onnx_ai_rt._cpu import cpu_info
    from onnx_ai_rt._library import get_library_path, query

    library = query("info")
    cpu = cpu_info()
    return {
        "versions": {"python": platform.python_version(), **_versions()},
        "library": {
            "path": get_library_path(),
            "version": library["version"],
            "oldest_onnxruntime": f"1.{library['ort_api_version']}",
        },
        "platform": platform.platform(),
        "cpu": {**asdict(cpu), "ignored": _ignored_target(cpu.targets)},
        "operators": library["operators"],
    }


def _ignored_target(targets: Collection[str]) -> str:
    """What ONNX_AI_RT_CPU_TARGET names if it is not supported here, and therefore without effect; else nothing."""
    import os

    name = os.environ.get("ONNX_AI_RT_CPU_TARGET", "")
    return "" if name in ("", "best", *targets) else name


def _versions() -> dict[str, str]:
    """Installed distributions by name; onnxruntime comes in several."""
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    runtimes = sorted(set(packages_distributions().get("onnxruntime", [])))
    found = {}
    for name in ("onnx-ai-rt", *(runtimes or ["onnxruntime"]), "onnx", "numpy", "ml_dtypes", "protobuf"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def as_text(info: dict[str, Any]) -> str:
    """The output for people."""
    cpu = info["cpu"]
    lines = [f"{name:<14}{version}" for name, version in info["versions"].items()]
    lines += [
        f"{'library':<14}{info['library']['path']}",
        f"{'platform':<14}{info['platform']}",
        f"{'cpu':<14}{cpu['model']}",
        f"{'features':<14}{' '.join(cpu['features'])}",
        f"{'targets':<14}{' '.join(cpu['targets'])}; chosen: {cpu['chosen']}",
    ]
    if cpu["ignored"]:
        lines.append(
            f"{'':<14}ONNX_AI_RT_CPU_TARGET={cpu['ignored']} is ignored: supported here are {', '.join(cpu['targets'])}"
        )
    for operator in info["operators"]:
        names = [f"{domain or 'ai.onnx'}::{operator['name']}" for domain in operator["domains"]]
        lines += ["", " and ".join(names)]
        for kind in ("inputs", "outputs"):
            for slot in operator[kind]:
                name = slot["name"] + ("?" if slot["optional"] else "")
                types = ", ".join(slot["types"]) or "bool, float, float16, bfloat16, double, integers of 4 to 64 bits"
                lines.append(f"  {kind[:-1]:<8}{name:<20}{types}")
    return "\n".join(lines)
