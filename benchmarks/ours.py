"""This library: through sessions, as its users run it, and the kernels alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import helper

import onnx_ai_rt
from benchmarks.contender import TOLERANCE, Contender
from benchmarks.ort_session import BoundSession
from benchmarks.problem import Array, Problem, aligned
from onnx_ai_rt import _core

OURS = "ours"
KERNEL = "ours, kernel alone"


def contenders(problem: Problem, threads: int, targets: tuple[str, ...], with_kernel: bool) -> Iterator[Contender]:
    """Ours on each of the instruction sets; the first is the one that the marks are for."""
    if problem.row.kind == "quantize":
        yield from _quantizers(problem, threads, targets)
        return
    makers = {OURS: _session_run, **({KERNEL: _kernel_run} if with_kernel and threads == 1 else {})}
    for name, maker in makers.items():
        for target in targets:
            onnx_ai_rt.choose_cpu_target(target)
            output = aligned(problem.query.shape, problem.dtype)
            yield Contender(
                name=_with_target(name, target, targets),
                threads=threads,
                run=maker(problem, output, threads),
                before=functools.partial(onnx_ai_rt.choose_cpu_target, target),
                output=functools.partial(np.asarray, output),
                tolerance=TOLERANCE[problem.row.page_format or problem.row.dtype],
                target=target,
            )


def _with_target(name: str, target: str, targets: tuple[str, ...]) -> str:
    return name if target == targets[0] else f"{name} ({target})"


def attention_node(problem: Problem) -> tuple[onnx.NodeProto, dict[str, Array]]:
    """The row as ONNX's Attention, and its inputs."""
    row = problem.row
    inputs = dict(problem.typed)
    if problem.mask is not None:
        inputs["attn_mask"] = problem.mask
    for name, past in (("K", "past_key"), ("V", "past_value")) if row.past else ():
        for part, rows in ((past, slice(0, row.past)), (name, slice(row.past, None))):
            inputs[part] = problem.cast(problem.typed[name][:, :, rows], problem.dtype)
    order = ("Q", "K", "V", "attn_mask", "past_key", "past_value")
    names = [name if name in inputs else "" for name in order]
    while not names[-1]:
        names.pop()
    outputs = ["Y", "present_key", "present_value"] if row.past else ["Y"]
    return helper.make_node("Attention", names, outputs, is_causal=int(row.causal)), inputs


def attention_outputs(problem: Problem, output: Array) -> dict[str, Array]:
    """Memory for the outputs of `attention_node`."""
    outputs = {"Y": output}
    if problem.row.past:
        outputs["present_key"] = aligned(problem.key.shape, problem.dtype)
        outputs["present_value"] = aligned(problem.value.shape, problem.dtype)
    return outputs


def new_tokens(problem: Problem) -> dict[str, Array]:
    """Q, K and V of the step, in the row's type."""
    start = problem.row.shape.keys - problem.row.new_tokens
    parts = {"Q": problem.query, "K": problem.key[:, :, start:], "V": problem.value[:, :, start:]}
    return {name: problem.cast(part, problem.dtype) for name, part in parts.items()}


def _session_run(problem: Problem, output: Array, threads: int) -> Callable[[], None]:
    if problem.row.kind == "attention":
        node, inputs = attention_node(problem)
        return BoundSession(node, inputs, attention_outputs(problem, output), threads, ours=True).run
    node = helper.make_node("PagedAttention", ["Q", "K", "V", "past"], ["Y", "", "appended"], domain="ai.rt")
    inputs = {**new_tokens(problem), "past": problem.pages}
    return BoundSession(node, inputs, {"Y": output, "appended": np.uint8}, threads, ours=True).run


def _kernel_run(problem: Problem, output: Array, threads: int) -> Callable[[], None]:
    if problem.row.kind == "attention":
        node, inputs = attention_node(problem)
        outputs = attention_outputs(problem, output)
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        return functools.partial(_core.attention, inputs, attributes, list(outputs), threads, outputs)
    step = new_tokens(problem)

    def run() -> None:
        output[...] = _core.paged_attention(
            problem.pages, step["Q"], step["K"], step["V"], request=["appended"], threads=threads
        )["Y"]

    return run


def _quantizers(problem: Problem, threads: int, targets: tuple[str, ...]) -> Iterator[Contender]:
    """The kernel through pybind11 with a warm output, beside memcpy of its input."""
    source = problem.pages
    page_count = len(_core.parse_paged_cache(source))
    target_type = onnx.TensorProto.DataType.Value(problem.row.page_format)
    out = aligned(source.shape, np.uint8)
    scale = 0.03 if problem.row.page_format == "INT8" else 0.5

    def quantize() -> None:
        _core.quantize_paged_cache(
            source, np.arange(page_count), scale, target_type, 0, scale, target_type, 0, threads, out
        )

    for target in targets:
        before = functools.partial(onnx_ai_rt.choose_cpu_target, target)
        yield Contender(_with_target(OURS, target, targets), threads, quantize, before, target=target)
