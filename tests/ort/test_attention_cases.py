"""Stored cases through a session: tests/data/attention_cases.json, and onnx's own node tests of Attention."""

from __future__ import annotations

import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from support.attention_json_cases import JsonCase, attention_json_cases
from support.attention_known_cases import (
    check_json_case,
    check_node_case,
    each_json_case,
    each_node_case,
    needs_onnx_as_judge,
)
from support.onnx_node_cases import NodeCase, attention_node_cases
from support.sessions import IR_VERSION, NEWEST_OPSET, OPSET, make_model, make_session, run

import onnx_ai_rt


def _counted_once(operator: str) -> None:
    assert [(r.operator, r.count) for r in onnx_ai_rt.kernel_runs()] == [(operator, 1)]


@pytest.mark.parametrize("domain", ["", "ai.rt"])
@each_json_case
def test_json_case(case: JsonCase, domain: str) -> None:
    node = helper.make_node("Attention", case.node_inputs, case.node_outputs, domain=domain, **case.attributes)
    model = make_model(
        [node],
        {name: (x.dtype, x.shape) for name, x in case.inputs.items()},
        {name: (x.dtype, None) for name, x in case.outputs.items()},
        opset=OPSET,
    )
    session = make_session(model)
    onnx_ai_rt.kernel_runs(reset=True)
    got = run(session, case.inputs)
    _counted_once("Attention" if domain == "" else "ai.rt::Attention")
    check_json_case(case, got)


def test_number_of_json_cases() -> None:
    assert len(attention_json_cases()) == 51


@needs_onnx_as_judge
def test_number_of_node_cases() -> None:
    cases = attention_node_cases()
    loads = sum(case.opset <= NEWEST_OPSET for case in cases)
    print(
        f"onnxruntime {ort.__version__} loads {loads} of {len(cases)} Attention node cases, the rest at a lower opset"
    )
    assert len(cases) >= 93
    assert loads == len(cases) or NEWEST_OPSET < 25


@each_node_case
def test_onnx_node_case(case: NodeCase) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = IR_VERSION
    if case.opset > NEWEST_OPSET:
        # The operators of these models mean the same in the newest opset that this onnxruntime has, but for Attention,
        # which it takes from the library.
        assert {node.op_type for node in model.graph.node} <= {"Attention", "Cast", "Identity"}
        model.opset_import[0].version = NEWEST_OPSET
    session = make_session(model)
    onnx_ai_rt.kernel_runs(reset=True)
    got = run(session, case.inputs)
    _counted_once("Attention")
    check_node_case(case, case.outputs, got)
