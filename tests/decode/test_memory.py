"""Memory of a long decode loop follows the bytes of its caches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SMALL_MODEL = Path(__file__).parents[2] / "examples" / "data" / "tiny_pycode_lm.onnx"

_PROGRAM = """
import gc, os, sys
import numpy as np, onnx, onnxruntime, onnx_ai_rt

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

steps, warm_up = int(sys.argv[2]), 200
options = onnx_ai_rt.register(onnxruntime.SessionOptions())
options.intra_op_num_threads = 1
model = onnx_ai_rt.to_paged(onnx.load(sys.argv[1])).model
session = onnxruntime.InferenceSession(model.SerializeToString(), options)
cache = onnx_ai_rt.PagedKVCache.for_model(session)
most = 0
for step in range(steps):
    token = np.array([[step * 37 % 256]], np.int64)
    logits = cache.run(session, {"input_ids": token})["logits"]
    if step == warm_up:
        gc.collect()
        before = resident()
    if step > warm_up and step % 50 == 0:
        most = max(most, resident())
gc.collect()
most = max(most, resident())
assert cache.tokens == steps and np.isfinite(logits).all()
pages = cache.statistics.pages
print(most - before, cache.nbytes, pages)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_long_loop(request: pytest.FixtureRequest) -> None:
    steps = 10_000 if request.config.getoption("--full") else 2_000
    command = [sys.executable, "-c", _PROGRAM, str(SMALL_MODEL), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    growth, nbytes, pages = map(int, done.stdout.split())
    assert growth <= 2 * nbytes + 16 * 2**20
    assert pages <= 4 * (steps // 64 + 2 * 8)
