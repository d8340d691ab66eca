"""The kernels, called without ONNX Runtime."""

from __future__ import annotations

import numpy as np

from onnx_ai_rt import _core
from support.attention_calls import AttentionCall

EVERYTHING = ("present_key", "present_value", "qk_matmul_output")


def run_core(call: AttentionCall, request: tuple[str, ...] = (), threads: int = 1) -> dict[str, np.ndarray]:
    """Y and the requested outputs. The kernel writes into buffers full of NaN, so that what it leaves out shows."""
    query_type, value_type = call.inputs["Q"].dtype, call.inputs["V"].dtype
    heads = call.trace.heads
    batch, q_heads, q_len, _ = heads.q.shape
    v_size = heads.v.shape[3]
    y_shape = (batch, q_len, q_heads * v_size) if heads.rank3 else (batch, q_heads, q_len, v_size)
    buffers = {
        "Y": (y_shape, query_type),
        "present_key": (heads.k.shape, query_type),
        "present_value": (heads.v.shape, value_type),
        "qk_matmul_output": (heads.score_shape, query_type),
    }
    outputs = {name: np.full(buffers[name][0], np.nan, buffers[name][1]) for name in ("Y", *request)}
    return _core.attention(call.inputs, call.attributes, list(request), threads, outputs)
