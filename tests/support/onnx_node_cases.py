"""onnx's own node test cases of Attention, as the installed one has them: 93 in 1.23, without `_expanded` twins."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

# Before 1.23 the node cases and ReferenceEvaluator numbered the modes of qk_matmul_output differently and aligned
# causal masks and windows otherwise.
ONNX_IS_JUDGE = tuple(int(part) for part in onnx.__version__.split(".")[:2]) >= (1, 23)
NO_JUDGE = f"onnx {onnx.__version__} has the rules of Attention before they were corrected in 1.23"


@dataclass(frozen=True)
class NodeCase:
    """One model with its inputs by name, the expected outputs by name, and onnx's own tolerances."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    rtol: float
    atol: float

    @property
    def opset(self) -> int:
        """The model's version of domain ""."""
        return next(o.version for o in self.model.opset_import if o.domain == "")

    @property
    def node(self) -> onnx.NodeProto:
        """The Attention node."""
        return next(n for n in self.model.graph.node if n.op_type == "Attention")


def _tensors(folder: str, kind: str) -> list[np.ndarray]:
    paths = sorted(Path(folder, "test_data_set_0").glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
    return [onnx.numpy_helper.to_array(onnx.load_tensor(str(path))) for path in paths]


@functools.cache
def attention_node_cases() -> tuple[NodeCase, ...]:
    """Every case named test_attention_* whose model holds an Attention node, by name."""
    cases = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, while onnx makes the cases of other operators
        all_cases = load_model_tests(kind="node")
    for case in all_cases:
        if not case.name.startswith("test_attention_"):
            continue
        # Recent versions make model and data when asked; earlier ones ship them as files.
        model = case.model or onnx.load(str(Path(case.model_dir, "model.onnx")))
        if all(node.op_type != "Attention" for node in model.graph.node):
            continue
        inputs, outputs = (
            case.data_sets[0]
            if case.data_sets
            else (_tensors(case.model_dir, "input"), _tensors(case.model_dir, "output"))
        )
        cases.append(
            NodeCase(
                case.name,
                model,
                dict(zip((i.name for i in model.graph.input), inputs, strict=True)),
                dict(zip((o.name for o in model.graph.output), outputs, strict=True)),
                case.rtol,
                case.atol,
            )
        )
    return tuple(sorted(cases, key=lambda case: case.name))
