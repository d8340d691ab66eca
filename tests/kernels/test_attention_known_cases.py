"""Attention's kernels on stored cases: tests/data/attention_cases.json and onnx's own node tests."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support.attention_json_cases import ATOL, RTOL, JsonCase, attention_json_cases
from support.onnx_models import ATTENTION_INPUTS, ATTENTION_OUTPUTS
from support.onnx_node_cases import NO_JUDGE, ONNX_IS_JUDGE, NodeCase, attention_node_cases

from onnx_ai_rt import _core


@pytest.mark.parametrize("case", attention_json_cases(), ids=lambda case: case.name)
def test_json_case(cpu_target: str, case: JsonCase) -> None:
    got = _core.attention(case.inputs, case.attributes, [name for name in case.outputs if name != "Y"])
    for name, expected in case.outputs.items():
        np.testing.assert_allclose(got[name], expected, rtol=RTOL, atol=ATOL, err_msg=name)


@pytest.mark.skipif(not ONNX_IS_JUDGE, reason=NO_JUDGE)
@pytest.mark.parametrize("case", attention_node_cases(), ids=lambda case: case.name)
def test_onnx_node_case(cpu_target: str, case: NodeCase) -> None:
    node = case.node
    inputs = {n: case.inputs[value] for n, value in zip(ATTENTION_INPUTS, node.input, strict=False) if value}
    names = {n: value for n, value in zip(ATTENTION_OUTPUTS, node.output, strict=False) if value in case.outputs}
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    got = _core.attention(inputs, attributes, [name for name in names if name != "Y"])
    for name, value in names.items():
        expected = case.outputs[value]
        # The stored results of half types were computed in them, step by step.
        slack = {"float16": 5e-3, "bfloat16": 4e-2}.get(expected.dtype.name, 0.0)
        np.testing.assert_allclose(
            np.float64(got[name]),
            np.float64(expected),
            rtol=max(case.rtol, slack),
            atol=max(case.atol, slack),
            err_msg=name,
        )
