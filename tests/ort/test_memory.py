"""Attention allocates nothing of the size queries x keys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.sessions import attention_node, make_model

_PROGRAM = """
import resource, sys
import numpy as np, onnxruntime as ort, onnx_ai_rt

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

options = onnx_ai_rt.register(ort.SessionOptions())
session = ort.InferenceSession(sys.argv[1], options)
small = {name: np.ones((1, 8, 16, 64), np.float32) for name in "QKV"}
session.run(None, small)
large = {name: np.random.default_rng(0).standard_normal((1, 8, 8192, 64), np.float32) for name in "QKV"}
before = peak_bytes()
output = session.run(None, large)[0]
print(peak_bytes() - before - output.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
@pytest.mark.parametrize("is_causal", [0, 1])
def test_peak_memory_of_a_long_prefill(is_causal: int, tmp_path: Path) -> None:
    types = {name: (np.float32, [None] * 4) for name in "QKV"}
    path = tmp_path / "model.onnx"
    model = make_model([attention_node("QKV", is_causal=is_causal)], types, {"Y": (np.float32, None)})
    path.write_bytes(model.SerializeToString())
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 * 2**20
