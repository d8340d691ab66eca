"""The instruction sets that tests of kernels run on."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest

from onnx_ai_rt import _core

# What the kernels are compiled for.
COMPILED = {
    "x86_64": ("AMX", "AVX3_SPR", "AVX3_ZEN4", "AVX3", "AVX2", "SSE2", "AMX_EMULATED"),
    "aarch64": ("NEON_BF16", "NEON", "NEON_WITHOUT_AES"),
}.get(platform.machine(), tuple(_core.supported_cpu_targets()))


@pytest.fixture(params=COMPILED)
def cpu_target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on this instruction set; skipped where the CPU lacks it."""
    supported = _core.supported_cpu_targets()
    if request.param not in supported:
        pytest.skip(f"this CPU does not run {request.param}, only {', '.join(supported)}")
    _core.choose_cpu_target(request.param)
    yield request.param
    _core.choose_cpu_target("best")
