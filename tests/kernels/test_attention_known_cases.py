"""Attention's kernels on stored cases: tests/data/attention_cases.json and onnx's own node tests."""

from __future__ import annotations

from support.attention_json_cases import JsonCase
from support.attention_known_cases import (
    check_json_case,
    check_node_case,
    each_json_case,
    each_node_case,
    node_call,
    node_outputs,
)
from support.onnx_node_cases import NodeCase

from onnx_ai_rt import _core


@each_json_case
def test_json_case(cpu_target: str, case: JsonCase) -> None:
    got = _core.attention(case.inputs, case.attributes, [name for name in case.outputs if name != "Y"])
    check_json_case(case, got)


@each_node_case
def test_onnx_node_case(cpu_target: str, case: NodeCase) -> None:
    expected = node_outputs(case)
    got = _core.attention(*node_call(case), [name for name in expected if name != "Y"])
    check_node_case(case, expected, got)
