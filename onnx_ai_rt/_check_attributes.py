"""Which attributes the operators take, of which type, and which values."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import onnx
from onnx import AttributeProto


class _Rule(NamedTuple):
    kind: int  # onnx.AttributeProto.AttributeType; a float must be finite
    low: int | None = None
    high: int | None = None


_INT, _FLOAT = _Rule(AttributeProto.INT), _Rule(AttributeProto.FLOAT)
_POSITIVE, _WINDOW = _Rule(AttributeProto.INT, 1), _Rule(AttributeProto.INT, -1)
_COMMON = {"is_causal": _INT, "left_window_size": _WINDOW, "scale": _FLOAT, "softcap": _FLOAT}

_ATTRIBUTES = {
    "Attention": {
        **_COMMON,
        "kv_num_heads": _POSITIVE,
        "q_num_heads": _POSITIVE,
        "qk_matmul_output_mode": _Rule(AttributeProto.INT, 0, 3),
        "right_window_size": _WINDOW,
        "softmax_precision": _INT,
    },
    "PagedAttention": {**_COMMON, "block_size": _POSITIVE, "max_tokens": _INT},
}


def attribute_problems(node: onnx.NodeProto) -> list[str]:
    """What is wrong with the attributes of a node of one of the operators, in words."""
    rules = _ATTRIBUTES.get(node.op_type, {})
    problems = []
    unknown = sorted(a.name for a in node.attribute if a.name not in rules)
    if unknown:
        problems.append(f"attribute {', '.join(unknown)} is not one of {node.op_type} up to opset 25")
    values = {}
    for attribute in node.attribute:
        if attribute.name not in rules or attribute.ref_attr_name:  # of a function: known at its calls
            continue
        problem = _problem(attribute, rules[attribute.name])
        if problem:
            problems.append(f"attribute {attribute.name} must be {problem}")
        else:
            values[attribute.name] = onnx.helper.get_attribute_value(attribute)
    heads, groups = values.get("q_num_heads"), values.get("kv_num_heads")
    if heads and groups and heads % groups:
        problems.append(f"attribute q_num_heads must be a multiple of kv_num_heads {groups}, got {heads}")
    return problems


def _problem(attribute: Any, rule: _Rule) -> str:
    """What the value must be and is not; empty where it is."""
    name = "an integer" if rule.kind == AttributeProto.INT else "a float"
    if attribute.type != rule.kind:
        return f"{name}, got type {AttributeProto.AttributeType.Name(attribute.type)}"
    if rule.kind == AttributeProto.FLOAT:
        return "" if math.isfinite(attribute.f) else f"finite, got {attribute.f}"
    if (rule.low is None or attribute.i >= rule.low) and (rule.high is None or attribute.i <= rule.high):
        return ""
    return f"{rule.low} " + ("or more" if rule.high is None else f"to {rule.high}") + f", got {attribute.i}"
