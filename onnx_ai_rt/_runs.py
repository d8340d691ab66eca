"""Which kernels ran."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_ai_rt._library import query


@dataclass(frozen=True)
class KernelRun:
    """How often one operator took one path on one instruction set."""

    operator: str
    """``"Attention"`` for ONNX's own domain, else with its domain: ``"ai.rt::Attention"``."""
    path: str
    """The kernel's name for the way it computed, for example ``"streaming"``."""
    target: str
    """The instruction set in Highway's spelling, for example ``"AVX2"``."""
    count: int


def kernel_runs(*, reset: bool = False) -> list[KernelRun]:
    """Kernel runs of all sessions in this process since the start or the last reset, in the order of their first run.

    ONNX Runtime's profile cannot tell an overridden kernel from its own; this can.

    Args:
        reset: start counting at zero again.
    """
    runs = [KernelRun(**run) for run in query("kernel_runs")]
    if reset:
        query("reset_kernel_runs")
    return runs
