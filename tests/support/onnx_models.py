"""One-node models for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

ATTENTION_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
ATTENTION_OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")


def node_model(
    op_type: str,
    inputs: dict[str, np.ndarray],
    input_order: tuple[str, ...],
    outputs: dict[str, int],
    attributes: dict[str, Any],
    *,
    domain: str = "",
    opset: int = 23,
    ranks: dict[str, int] | None = None,
) -> onnx.ModelProto:
    """A model of one node. `inputs` gives types and shapes; names of `input_order` that it lacks are omitted.
    `outputs` maps names, "" for an omitted one, to onnx element types; their shapes are left to inference."""
    names = [name if name in inputs else "" for name in input_order]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(op_type, names, list(outputs), domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(inputs[name].dtype), inputs[name].shape)
        for name in names
        if name
    ]
    out_infos = [
        helper.make_tensor_value_info(name, elem, None if ranks is None else [None] * ranks[name])
        for name, elem in outputs.items()
        if name
    ]
    graph = helper.make_graph([node], "one_node", infos, out_infos)
    imports = [helper.make_opsetid(domain, opset)] if domain == "" else [helper.make_opsetid("", 23)]
    if domain:
        imports.append(helper.make_opsetid(domain, opset))
    return helper.make_model(graph, opset_imports=imports, ir_version=11)


def attention_model(
    inputs: dict[str, np.ndarray], attributes: dict[str, Any], *, domain: str = "", opset: int = 23
) -> onnx.ModelProto:
    """One Attention node with all four outputs."""
    query = helper.np_dtype_to_tensor_dtype(inputs["Q"].dtype)
    value = helper.np_dtype_to_tensor_dtype(inputs["V"].dtype)
    outputs = dict(zip(ATTENTION_OUTPUTS, (query, query, value, query), strict=True))
    return node_model("Attention", inputs, ATTENTION_INPUTS, outputs, attributes, domain=domain, opset=opset)
