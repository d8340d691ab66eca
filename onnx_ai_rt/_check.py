"""Which attention nodes of a model this library serves, which not, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from onnx_ai_rt._check_attributes import attribute_problems
from onnx_ai_rt._library import query

DOMAIN = "ai.rt"

_CONTRIB = {
    "Attention": "self-attention with its projections fused in",
    "DecoderAttention": "attention with its projections fused in",
    "DecoderMaskedMultiHeadAttention": "one decoding step over onnxruntime's own cache layout",
    "DecoderMaskedSelfAttention": "one decoding step with its projections fused in",
    "GroupQueryAttention": "attention with rotary embedding and cache update fused in",
    "LinearAttention": "a recurrence without softmax",
    "LongformerAttention": "local and global attention with its projections fused in",
    "MultiHeadAttention": "attention in onnxruntime's own layouts",
    "PackedAttention": "self-attention over sequences without padding",
    "PackedMultiHeadAttention": "attention over sequences without padding",
    "PagedAttention": "attention over a block table of onnxruntime's own",
    "QAttention": "quantized self-attention with its projections fused in",
    "QOrderedAttention": "quantized self-attention with its projections fused in",
    "SparseAttention": "block-sparse attention",
}

# First onnxruntime release that loads models of an opset of ai.onnx, and of an IR version.
_RUNTIME_OF_OPSET = {23: (1, 23), 24: (1, 24), 25: (1, 24), 26: (1, 25), 27: (1, 32), 28: (1, 32)}
_RUNTIME_OF_IR = {11: (1, 23), 12: (1, 24), 13: (1, 24), 14: (1, 32)}
_OLDEST = (1, 21)

# 2-bit masks are refused by onnxruntime itself.
_MASK_TYPES = {
    "bool",
    "float",
    "float16",
    "bfloat16",
    "double",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (4, 8, 16, 32, 64)),
}


@dataclass(frozen=True)
class NodeReport:
    """One attention node, or another one of ai.rt that is not served."""

    operator: str
    """With its domain: ``"ai.onnx::Attention"``."""
    node: str
    """The node's name, or its first output's where it has none."""
    place: str
    """``"graph"``, a path of subgraphs below it, or ``"function NAME"``."""
    served: bool
    reasons: tuple[str, ...]
    """Why not; or what to know where it is served."""
    types: Mapping[str, str]
    """Element types of its inputs as far as shape inference knows them."""

    @property
    def is_attention(self) -> bool:
        return "Attention" in self.operator


@dataclass(frozen=True)
class ModelReport:
    """What ``check`` finds."""

    ir_version: int
    opset: int
    """Of ai.onnx; 0 where the model imports none."""
    needs_onnxruntime: str
    """The oldest release that loads the model, ``"1.23"``; ``""`` where its opset is newer than this library knows."""
    nodes: tuple[NodeReport, ...]


def check_model(model: onnx.ModelProto) -> ModelReport:
    """Lists the attention nodes of a model, those of subgraphs and functions included.

    What else there is of ai.rt, as PagedCacheLength, is in the list only where it is not served.
    """
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    operators = {o["name"]: o for o in query("info")["operators"]}
    functions = {(f.domain, f.name) for f in model.functions}
    nodes = []
    for scope in _scopes(_inferred(model)):
        for node in scope.nodes:
            if (node.domain, node.op_type) not in functions and _concerns_us(node):
                report = _node_report(node, scope, operators)
                if report.is_attention or not report.served:
                    nodes.append(report)
    return ModelReport(model.ir_version, opset, _needed_runtime(model.ir_version, opset), tuple(nodes))


@dataclass(frozen=True)
class _Scope:
    """Nodes that see the same values."""

    place: str
    nodes: Sequence[onnx.NodeProto]
    types: Mapping[str, int]  # value -> onnx.TensorProto.DataType


def _scopes(model: onnx.ModelProto) -> Iterator[_Scope]:
    yield from _graph_scopes(model.graph, "graph", {})
    for function in model.functions:
        name = f"{function.domain or 'ai.onnx'}::{function.name}"
        yield from _node_scopes(function.node, f"function {name}", _value_types(function.value_info))


def _graph_scopes(graph: onnx.GraphProto, place: str, outer: Mapping[str, int]) -> Iterator[_Scope]:
    types = {**outer, **_value_types([*graph.value_info, *graph.input, *graph.output])}
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    yield from _node_scopes(graph.node, place, types)


def _node_scopes(nodes: Sequence[onnx.NodeProto], place: str, types: Mapping[str, int]) -> Iterator[_Scope]:
    yield _Scope(place, nodes, types)
    for node in nodes:
        for attribute in node.attribute:
            for graph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                inner = f"{place} / {_name(node)} ({node.op_type}.{attribute.name})"
                yield from _graph_scopes(graph, inner, types)


def _value_types(values: Any) -> dict[str, int]:
    return {value.name: value.type.tensor_type.elem_type for value in values if value.type.HasField("tensor_type")}


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types that onnx can infer; unchanged where it cannot infer any."""
    try:
        return onnx.shape_inference.infer_shapes(model)
    except (onnx.shape_inference.InferenceError, ValueError):  # invalid models, and those beyond 2 GiB
        return model


def _name(node: onnx.NodeProto) -> str:
    return node.name or next((output for output in node.output if output), "")


def _concerns_us(node: onnx.NodeProto) -> bool:
    if node.domain == "com.microsoft":
        return node.op_type in _CONTRIB
    return node.domain == DOMAIN or "Attention" in node.op_type


def _node_report(node: onnx.NodeProto, scope: _Scope, operators: Mapping[str, Any]) -> NodeReport:
    types = {}
    operator = operators.get(node.op_type)
    slots = operator["inputs"] if operator else []
    for i, value in enumerate(node.input):
        name = slots[i]["name"] if i < len(slots) else f"input {i}"
        if scope.types.get(value):
            types[name] = _type_name(scope.types[value])
    domain = "" if node.domain == "ai.onnx" else node.domain
    if operator is not None and domain in operator["domains"]:
        reasons = _reasons_against(node, operator, types)
    else:
        reasons = [_why_foreign(node)]
    return NodeReport(
        operator=f"{node.domain or 'ai.onnx'}::{node.op_type}",
        node=_name(node),
        place=scope.place,
        served=not reasons,
        reasons=tuple(reasons or _notes(operator, types)),
        types=types,
    )


def _why_foreign(node: onnx.NodeProto) -> str:
    if node.domain == "com.microsoft":
        return f"an operator of onnxruntime ({_CONTRIB[node.op_type]}); it keeps running on onnxruntime's kernel"
    if node.domain == DOMAIN:
        return f"this version has no operator {node.op_type}"
    return f"an operator of domain {node.domain or 'ai.onnx'}; this library serves Attention of ai.onnx and {DOMAIN}"


def _reasons_against(node: onnx.NodeProto, operator: Mapping[str, Any], types: Mapping[str, str]) -> list[str]:
    reasons = []
    slots = operator["inputs"]
    if len(node.input) > len(slots):
        reasons.append(f"it has {len(node.input)} inputs, {operator['name']} takes at most {len(slots)}")
    reasons += attribute_problems(node)
    for i, slot in enumerate(slots):
        given = i < len(node.input) and node.input[i] != ""
        got = types.get(slot["name"])
        if not given and not slot["optional"]:
            reasons.append(f"input {slot['name']} is missing")
        if got is not None and slot["types"] and got not in slot["types"]:
            reasons.append(f"input {slot['name']} must be one of {', '.join(slot['types'])}, got {got}")
    if operator["name"] == "Attention":
        mask = types.get("attn_mask")
        if mask is not None and mask not in _MASK_TYPES:
            reasons.append(
                f"input attn_mask must be bool, a float type or an integer type of 4 bits or more, got {mask}"
            )
        for one, other in (("Q", "K"), ("Q", "past_key"), ("V", "past_value")):
            if one in types and other in types and types[one] != types[other]:
                reasons.append(f"inputs {one} and {other} must have one type, got {types[one]} and {types[other]}")
    return reasons


def _notes(operator: Mapping[str, Any] | None, types: Mapping[str, str]) -> list[str]:
    notes = []
    two_bit = sorted({t for t in types.values() if t in ("int2", "uint2")})
    if two_bit:
        notes.append(f"{', '.join(two_bit)} needs onnxruntime 1.24 or later")
    required = [slot["name"] for slot in (operator or {}).get("inputs", []) if not slot["optional"] and slot["types"]]
    unknown = [name for name in required if name not in types]
    if unknown:
        notes.append(f"type of {', '.join(unknown)} is known only at run time")
    return notes


def _type_name(data_type: int) -> str:
    return str(onnx.TensorProto.DataType.Name(data_type)).lower()


def _needed_runtime(ir_version: int, opset: int) -> str:
    newest_opset, newest_ir = max(_RUNTIME_OF_OPSET), max(_RUNTIME_OF_IR)
    if opset > newest_opset or ir_version > newest_ir:
        return ""
    major, minor = max(_RUNTIME_OF_OPSET.get(opset, _OLDEST), _RUNTIME_OF_IR.get(ir_version, _OLDEST))
    return f"{major}.{minor}"
