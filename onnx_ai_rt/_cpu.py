"""What this CPU has and which of the compiled instruction sets runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from onnx_ai_rt._arguments import described
from onnx_ai_rt._library import query

# What matters to the kernels, of all that a CPU says of itself.
_INTERESTING = {"sse2", "avx", "avx2", "fma", "f16c", "avx_vnni", "bf16", "i8mm"}
_INTERESTING_FAMILIES = ("avx512", "amx", "asimd", "sve", "sme")


@dataclass(frozen=True)
class CpuInfo:
    """The CPU as the kernels see it."""

    model: str
    """The CPU's name, ``""`` where the system does not tell."""
    features: tuple[str, ...]
    """Instruction sets that matter here, in the system's spelling; empty where the system does not tell."""
    targets: tuple[str, ...]
    """Instruction sets that the kernels are compiled for and this CPU runs, best first, in Highway's spelling; and
    ``AMX``, and ``AMX_EMULATED`` for tests, last."""
    chosen: str
    """The one that runs."""


def cpu_info() -> CpuInfo:
    """Features of this CPU, the instruction sets that could run and the one that does."""
    info = query("info")
    fields = _cpuinfo()
    features = fields.get("flags", fields.get("Features", "")).split()
    return CpuInfo(
        model=fields.get("model name", ""),
        features=tuple(f for f in features if f in _INTERESTING or f.startswith(_INTERESTING_FAMILIES)),
        targets=tuple(info["cpu_targets"]),
        chosen=info["chosen_cpu_target"],
    )


def choose_cpu_target(name: str) -> str:
    """Forces an instruction set for every later run in this process; for tests and measurements.

    The environment variable ``ONNX_AI_RT_CPU_TARGET`` does the same from the start of a process.

    Args:
        name: one of ``cpu_info().targets``, or ``""`` for the best.

    Returns:
        The name of the one that is chosen now.

    Raises:
        ValueError: this CPU, or the build, has no such instruction set; the text lists those that it has.
    """
    if not isinstance(name, str):
        raise TypeError(f"choose_cpu_target: name: expected text, got {described(name)}")
    chosen = str(query(f"choose_target {name}")["chosen_cpu_target"])
    core = sys.modules.get("onnx_ai_rt._core")
    if core is not None:  # it has its own copy of the kernels
        core.choose_cpu_target(name)
    return chosen


def _cpuinfo() -> dict[str, str]:
    """The first CPU of /proc/cpuinfo; empty elsewhere than on Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
