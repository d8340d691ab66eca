"""kernel_runs(), the log line, and the choice of an instruction set, as sessions show them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.attention_calls import FLOAT_TYPES, Geometry, make_call
from support.sessions import call_model, check, make_session, run, run_call

import onnx_ai_rt

CALL = make_call(Geometry(B=1, Hq=4, Hkv=2, S=3, N=20, D=16), np.random.default_rng(0))


@pytest.fixture
def best_target() -> Iterator[None]:
    """Goes back to the target that was chosen before the test."""
    before = onnx_ai_rt.cpu_info().chosen
    yield
    onnx_ai_rt.choose_cpu_target(before)


def test_counts_and_resets() -> None:
    session = make_session(call_model(CALL, domain="ai.rt"))
    onnx_ai_rt.kernel_runs(reset=True)
    assert onnx_ai_rt.kernel_runs() == []
    for _ in range(3):
        run(session, CALL.inputs)
    (kernel_run,) = onnx_ai_rt.kernel_runs()
    assert kernel_run.operator == "ai.rt::Attention"
    assert kernel_run.path
    assert kernel_run.target == onnx_ai_rt.cpu_info().chosen
    assert kernel_run.count == 3
    assert onnx_ai_rt.kernel_runs(reset=True) == [kernel_run]
    assert onnx_ai_rt.kernel_runs() == []


def test_a_failed_run_is_not_counted() -> None:
    session = make_session(call_model(CALL))
    onnx_ai_rt.kernel_runs(reset=True)
    with pytest.raises(Exception, match="Attention: input V"):
        run(session, {**CALL.inputs, "V": CALL.inputs["V"][:, :, :1]})
    assert onnx_ai_rt.kernel_runs() == []


@pytest.mark.usefixtures("best_target")
@pytest.mark.parametrize("dtype", FLOAT_TYPES, ids=str)
def test_every_instruction_set_of_this_cpu(dtype: np.dtype) -> None:
    call = make_call(
        Geometry(B=2, Hq=4, Hkv=2, S=9, L=5, N=40, D=40, Dv=24), np.random.default_rng(1), dtype, is_causal=1
    )
    for target in onnx_ai_rt.cpu_info().targets:
        assert onnx_ai_rt.choose_cpu_target(target) == target
        onnx_ai_rt.kernel_runs(reset=True)
        check(run_call(call)["Y"], call.oracle()[0], target)
        assert [r.target for r in onnx_ai_rt.kernel_runs()] == [target]
    assert onnx_ai_rt.choose_cpu_target("") == onnx_ai_rt.cpu_info().targets[0]


_PROGRAM = """
import sys
import numpy as np, onnxruntime as ort, onnx_ai_rt
options = onnx_ai_rt.register(ort.SessionOptions())
options.log_severity_level = int(sys.argv[2])
session = ort.InferenceSession(sys.argv[1], options)
run_options = ort.RunOptions()
run_options.log_severity_level = int(sys.argv[2])
x = np.ones((1, 2, 3, 4), np.float32)
session.run(None, {"Q": x, "K": x, "V": x}, run_options)
print(onnx_ai_rt.cpu_info().chosen)
"""


def _program(tmp_path: Path, severity: int, **environment: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "model.onnx"
    path.write_bytes(
        call_model(make_call(Geometry(Hq=2, Hkv=2, S=3, N=3, D=4, Dv=4), np.random.default_rng(0))).SerializeToString()
    )
    command = [sys.executable, "-c", _PROGRAM, str(path), str(severity)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=True)


def test_verbose_log_names_node_path_and_target(tmp_path: Path) -> None:
    done = _program(tmp_path, 0)
    (line,) = [line for line in done.stderr.splitlines() if "onnx_ai_rt: " in line]
    assert "onnx_ai_rt: Attention node 'attention' ran path " in line
    assert f" on {done.stdout.strip()}" in line
    assert "onnx_ai_rt: " not in _program(tmp_path, 1).stderr


def test_environment_variable_chooses_the_instruction_set(tmp_path: Path) -> None:
    for target in onnx_ai_rt.cpu_info().targets:
        assert _program(tmp_path, 3, ONNX_AI_RT_CPU_TARGET=target).stdout.strip() == target
