"""Stored cases through a session: tests/data/attention_cases.json, and onnx's own node tests of Attention."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from support.attention_json_cases import ATOL, RTOL, JsonCase, attention_json_cases
from support.onnx_node_cases import NO_JUDGE, ONNX_IS_JUDGE, NodeCase, attention_node_cases
from support.sessions import IR_VERSION, NEWEST_OPSET, OPSET, make_model, make_session, run

import onnx_ai_rt


def _counted_once(operator: str) -> None:
    assert [(r.operator, r.count) for r in onnx_ai_rt.kernel_runs()] == [(operator, 1)]


@pytest.mark.parametrize("domain", ["", "ai.rt"])
@pytest.mark.parametrize("case", attention_json_cases(), ids=lambda case: case.name)
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
    for name, expected in case.outputs.items():
        assert got[name].dtype == expected.dtype
        np.testing.assert_allclose(got[name], expected, rtol=RTOL, atol=ATOL, err_msg=name)


def test_number_of_json_cases() -> None:
    assert len(attention_json_cases()) == 51


@pytest.mark.skipif(not ONNX_IS_JUDGE, reason=NO_JUDGE)
def test_number_of_node_cases() -> None:
    cases = attention_node_cases()
    loads = sum(case.opset <= NEWEST_OPSET for case in cases)
    print(
        f"onnxruntime {ort.__version__} loads {loads} of {len(cases)} Attention node cases, the rest at a lower opset"
    )
    assert len(cases) >= 93
    assert loads == len(cases) or NEWEST_OPSET < 25


@pytest.mark.skipif(not ONNX_IS_JUDGE, reason=NO_JUDGE)
@pytest.mark.parametrize("case", attention_node_cases(), ids=lambda case: case.name)
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
    for name, expected in case.outputs.items():
        assert got[name].dtype == expected.dtype
        # The stored results of half types were computed in them, step by step.
        slack = {"float16": 5e-3, "bfloat16": 4e-2}.get(expected.dtype.name, 0.0)
        np.testing.assert_allclose(
            np.float64(got[name]),
            np.float64(expected),
            rtol=max(case.rtol, slack),
            atol=max(case.atol, slack),
            err_msg=name,
        )
