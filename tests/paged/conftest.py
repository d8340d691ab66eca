"""The instruction sets of this CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onnx_ai_rt import _core


@pytest.fixture(params=_core.supported_cpu_targets())
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _core.chosen_cpu_target()
    _core.choose_cpu_target(request.param)
    yield request.param
    _core.choose_cpu_target(before)
