"""The 51 cases of tests/data/attention_cases.json: inputs and expected outputs of Attention at opset 23."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RTOL, ATOL = 1e-4, 2e-5  # the expected values are printed with 8 digits


@dataclass(frozen=True)
class JsonCase:
    """One case; `node_inputs` and `node_outputs` are the node's names in order, "" for an omitted one."""

    name: str
    node_inputs: tuple[str, ...]
    node_outputs: tuple[str, ...]
    attributes: dict[str, Any]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


def _array(tensor: dict[str, Any]) -> np.ndarray:
    """nan, inf and -inf come as strings."""
    values = tensor["data"] if tensor["dtype"] == "bool" else [float(x) for x in tensor["data"]]
    return np.array(values).astype(tensor["dtype"]).reshape(tensor["shape"])


@functools.cache
def attention_json_cases() -> tuple[JsonCase, ...]:
    """All cases in the file's order."""
    path = Path(__file__).parent.parent / "data" / "attention_cases.json"
    return tuple(
        JsonCase(
            case["name"],
            tuple(case["node_inputs"]),
            tuple(case["node_outputs"]),
            case["attributes"],
            {name: _array(tensor) for name, tensor in case["inputs"].items()},
            {name: _array(tensor) for name, tensor in case["outputs"].items()},
        )
        for case in json.loads(path.read_text())["cases"]
    )
