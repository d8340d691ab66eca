"""The reference on stored cases: tests/data/attention_cases.json and onnx's own node tests."""

from __future__ import annotations

from support.attention_json_cases import JsonCase, attention_json_cases
from support.attention_known_cases import (
    check_json_case,
    check_node_case,
    each_json_case,
    each_node_case,
    node_call,
    node_outputs,
)
from support.onnx_models import ATTENTION_OUTPUTS
from support.onnx_node_cases import ONNX_IS_JUDGE, NodeCase, attention_node_cases

from onnx_ai_rt.reference import attention


def test_number_of_cases() -> None:
    assert len(attention_json_cases()) == 51
    if ONNX_IS_JUDGE:
        assert len(attention_node_cases()) >= 93


@each_json_case
def test_json_case(case: JsonCase) -> None:
    got = attention(**case.inputs, **case.attributes)
    check_json_case(case, dict(zip(ATTENTION_OUTPUTS, got, strict=True)))


@each_node_case
def test_onnx_node_case(case: NodeCase) -> None:
    inputs, attributes = node_call(case)
    got = attention(**inputs, **attributes)
    check_node_case(case, node_outputs(case), dict(zip(ATTENTION_OUTPUTS, got, strict=True)))
