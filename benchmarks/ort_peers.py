"""ONNX Runtime's own kernels: Attention, and com.microsoft::GroupQueryAttention with float and quantized caches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from onnx import helper

from benchmarks.contender import TOLERANCE, Contender
from benchmarks.ort_session import BoundSession
from benchmarks.ours import attention_node, attention_outputs
from benchmarks.problem import Array, Problem, aligned
from benchmarks.rows import ORT


def makers(problem: Problem, threads: int) -> Iterator[tuple[str, Callable[[], Contender]]]:
    """Names of what may run this row, and functions that set it up or raise Unavailable."""
    row = problem.row
    if row.kind == "quantize":
        return
    yield ORT, functools.partial(_attention, problem, threads)
    for cache in (row.dtype, "INT8", "INT4") if row.kind == "paged" else (row.dtype,):
        name = f"ORT GroupQueryAttention {cache}"
        yield name, functools.partial(_group_query_attention, name, problem, threads, cache)


def _attention(problem: Problem, threads: int) -> Contender:
    """The row's node without our library; pages as dense keys, and a mask where causality has an offset."""
    node, inputs = attention_node(problem)
    if problem.row.kind == "paged":
        s = problem.row.shape
        names = ["Q", "K", "V"]
        if s.queries > 1:
            names.append("attn_mask")
            inputs["attn_mask"] = problem.visible(np.arange(s.queries))[None, None]
        node = helper.make_node("Attention", names, ["Y"])
    output = aligned(problem.query.shape, problem.dtype)
    session = BoundSession(node, inputs, attention_outputs(problem, output), threads, ours=False)
    return Contender(
        ORT,
        threads,
        session.run,
        output=functools.partial(np.asarray, output),
        tolerance=TOLERANCE[problem.row.dtype],
    )


def _group_query_attention(name: str, problem: Problem, threads: int, cache: str) -> Contender:
    """The keys but the last `queries` ones lie in a cache that is extended in place, the fastest that it offers; where
    queries are as many as keys, all are new."""
    row, s = problem.row, problem.row.shape
    attributes: dict[str, Any] = {"num_heads": s.q_heads, "kv_num_heads": s.kv_heads}
    inputs = {
        "query": _tokens_first(problem.typed["Q"]),
        "key": _tokens_first(problem.typed["K"][:, :, problem.offset :]),
        "value": _tokens_first(problem.typed["V"][:, :, problem.offset :]),
        "seqlens_k": np.full(s.batch, s.keys - 1, np.int32),
        "total_sequence_length": np.array(s.keys, np.int32),
    }
    stored = {"past_key": problem.typed["K"], "past_value": problem.typed["V"]}
    names = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"]
    if cache in ("INT8", "INT4"):
        attributes |= {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
        attributes["kv_cache_bit_width"] = 8 if cache == "INT8" else 4
        scale = float(np.abs(problem.key).max()) / (127 if cache == "INT8" else 7)
        stored = {side: _codes(array, scale, cache) for side, array in stored.items()}
        inputs |= {"k_scale": np.array([scale], np.float32), "v_scale": np.array([scale], np.float32)}
        names += ["", "", "", "", "", "k_scale", "v_scale"]
    elif problem.mask is not None:
        attributes["causal"] = 0
        inputs["attention_bias"] = problem.mask
        names += ["", "", "", "attention_bias"]
    if row.past:  # the other contenders of such rows write the present apart
        stored = {side: array[:, :, : row.past] for side, array in stored.items()}
        stored = {side: problem.cast(array, array.dtype) for side, array in stored.items()}
        presents = {f"present_{side}": aligned(problem.key.shape, problem.dtype) for side in ("key", "value")}
    else:
        presents = {side.replace("past", "present"): array for side, array in stored.items()}
    node = helper.make_node("GroupQueryAttention", names, ["output", *presents], domain="com.microsoft", **attributes)
    output = aligned((s.batch, s.queries, s.q_heads * s.head_size), problem.dtype)
    session = BoundSession(node, inputs | stored, {"output": output, **presents}, threads, ours=False)

    def heads_first() -> Array:
        return output.reshape(s.batch, s.queries, s.q_heads, s.head_size).transpose(0, 2, 1, 3)

    return Contender(name, threads, session.run, output=heads_first, tolerance=TOLERANCE[cache])


def _tokens_first(array: Array) -> Array:
    """(B,H,seq,D) as (B,seq,H*D)."""
    batch, _, length, _ = array.shape
    result = aligned((batch, length, array.shape[1] * array.shape[3]), array.dtype)
    result[...] = array.transpose(0, 2, 1, 3).reshape(result.shape)
    return result


def _codes(array: Array, scale: float, cache: str) -> Array:
    """Symmetric codes of one scale, 4-bit ones in pairs with an offset of 8."""
    codes = np.rint(array / scale)
    if cache == "INT8":
        return Problem.cast(codes.astype(np.int8), np.dtype(np.int8))
    nibbles = (codes + 8).astype(np.uint8)
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)
