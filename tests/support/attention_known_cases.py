"""The walk over the stored cases of Attention: tests/data/attention_cases.json, and onnx's own node tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import helper

from support.attention_json_cases import ATOL, RTOL, JsonCase, attention_json_cases
from support.onnx_models import ATTENTION_INPUTS, ATTENTION_OUTPUTS
from support.onnx_node_cases import NO_JUDGE, ONNX_IS_JUDGE, NodeCase, attention_node_cases

needs_onnx_as_judge = pytest.mark.skipif(not ONNX_IS_JUDGE, reason=NO_JUDGE)
# Decorators of a test that takes `case`.
each_json_case = pytest.mark.parametrize("case", attention_json_cases(), ids=lambda case: case.name)
_each_node_case = pytest.mark.parametrize("case", attention_node_cases(), ids=lambda case: case.name)

# The stored results of half types were computed in them, step by step.
_SLACK = {"float16": 5e-3, "bfloat16": 4e-2}


def each_node_case(test: Callable[..., None]) -> Callable[..., None]:
    """Skipped where the installed onnx is no judge."""
    return needs_onnx_as_judge(_each_node_case(test))  # type: ignore[no-any-return]


def node_call(case: NodeCase) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Inputs of the Attention node by the operator's names, and its attributes."""
    node = case.node
    inputs = {name: case.inputs[value] for name, value in zip(ATTENTION_INPUTS, node.input, strict=False) if value}
    return inputs, {a.name: helper.get_attribute_value(a) for a in node.attribute}


def node_outputs(case: NodeCase) -> dict[str, np.ndarray]:
    """The expected outputs by the operator's names."""
    names = zip(ATTENTION_OUTPUTS, case.node.output, strict=False)
    return {name: case.outputs[value] for name, value in names if value in case.outputs}


def check_json_case(case: JsonCase, got: Mapping[str, np.ndarray]) -> None:
    """`got` has every expected output, of its type and within the error of the printed numbers."""
    for name, expected in case.outputs.items():
        assert got[name].dtype == expected.dtype
        np.testing.assert_allclose(got[name], expected, rtol=RTOL, atol=ATOL, err_msg=name)


def check_node_case(case: NodeCase, expected: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray]) -> None:
    """`got` has every expected output, of its type and within onnx's tolerance."""
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        slack = _SLACK.get(array.dtype.name, 0.0)
        np.testing.assert_allclose(
            np.float64(got[name]),
            np.float64(array),
            rtol=max(case.rtol, slack),
            atol=max(case.atol, slack),
            err_msg=name,
        )
