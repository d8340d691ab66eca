"""OpenVINO's ScaledDotProductAttention, after `pip install openvino`: `--peer benchmarks.openvino_peer`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.contender import TOLERANCE, Contender, Unavailable
from benchmarks.problem import Array, Problem, aligned


def makers(problem: Problem, threads: int) -> Iterator[tuple[str, Callable[[], Contender]]]:
    """Names of what may run this row, and functions that set it up or raise Unavailable."""
    row = problem.row
    if row.kind == "quantize" or row.past:
        return
    for dtype in dict.fromkeys(("float32", row.dtype)):
        name = f"OpenVINO {dtype}"
        yield name, functools.partial(_contender, name, problem, threads, dtype)


def _contender(name: str, problem: Problem, threads: int, dtype: str) -> Contender:
    """A model of one node. Tensors are float32 at its border; it computes in `dtype` where the CPU has instructions for
    it. Keys are repeated for the heads of a group by a broadcast, as exported models have it."""
    try:
        import openvino as ov
        from openvino import opset13
    except ImportError as error:
        raise Unavailable("openvino is not installed") from error
    s = problem.row.shape
    inputs = [problem.query, problem.key, problem.value]
    parameters = [opset13.parameter(array.shape, np.float32) for array in inputs]
    operands: list[Any] = list(parameters)
    if s.q_heads != s.kv_heads:
        grouped = [s.batch, s.kv_heads, s.q_heads // s.kv_heads, s.keys, s.head_size]
        for i in (1, 2):
            single = opset13.unsqueeze(operands[i], opset13.constant(np.array([2])))
            repeated = opset13.broadcast(single, opset13.constant(np.array(grouped)))
            shape = opset13.constant(np.array([s.batch, s.q_heads, s.keys, s.head_size]))
            operands[i] = opset13.reshape(repeated, shape, False)
    causal = problem.row.causal and problem.offset == 0
    mask = problem.mask
    if mask is None and problem.row.causal and s.queries > 1 and not causal:
        mask = aligned((1, 1, s.queries, s.keys), np.float32)
        mask[0, 0, ~problem.visible(np.arange(s.queries))] = -np.inf
    if mask is not None:
        parameters.append(opset13.parameter(mask.shape, np.float32))
        operands.append(parameters[-1])
        inputs.append(mask)
    node = opset13.scaled_dot_product_attention(*operands, causal=causal)
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype],
        "ENABLE_CPU_PINNING": False,
    }
    try:
        request = ov.compile_model(ov.Model([node], parameters, "row"), "CPU", settings).create_infer_request()
        output = aligned(problem.query.shape, np.float32)
        for i, array in enumerate(inputs):
            request.set_input_tensor(i, ov.Tensor(array, shared_memory=True))
        request.set_output_tensor(ov.Tensor(output, shared_memory=True))
        request.infer()
    except RuntimeError as error:
        raise Unavailable(str(error).strip().splitlines()[-1][:200]) from error

    def run() -> None:
        request.infer()

    def result() -> Array:
        return output

    return Contender(name, threads, run, output=result, tolerance=TOLERANCE[dtype])
