"""Sessions of one node, with inputs and outputs bound to memory that stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper

import onnx_ai_rt
from benchmarks.contender import Unavailable

OPSET = 23
IR_VERSION = 10


def element_type(dtype: Any) -> int:
    """onnx.TensorProto.DataType of a numpy or ml_dtypes type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


class BoundSession:
    """A session of one node whose outputs are written into the same memory at each run.

    Inputs are name -> array. Outputs are name -> array to write into, or name -> element type where the length is known
    only afterwards. Raises Unavailable where onnxruntime has no such kernel.
    """

    def __init__(
        self,
        node: onnx.NodeProto,
        inputs: Mapping[str, npt.NDArray[Any]],
        outputs: Mapping[str, npt.NDArray[Any] | type],
        threads: int,
        *,
        ours: bool,
    ) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        if ours:
            onnx_ai_rt.register(options)
        values = {name: onnx_ai_rt.to_ortvalue(array) for name, array in inputs.items()}
        types = {name: x.dtype if isinstance(x, np.ndarray) else x for name, x in outputs.items()}
        graph = helper.make_graph(
            [node],
            "row",
            [helper.make_tensor_value_info(n, element_type(a.dtype), a.shape) for n, a in inputs.items()],
            [helper.make_tensor_value_info(n, element_type(t), None) for n, t in types.items()],
        )
        opsets = [("", OPSET), ("ai.rt", 1), ("com.microsoft", 1)]
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets], ir_version=IR_VERSION
        )
        try:
            self._session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
            self._binding = self._session.io_binding()
            for name, value in values.items():
                self._binding.bind_ortvalue_input(name, value)
            for name, array in outputs.items():
                if isinstance(array, np.ndarray):
                    values.setdefault(name, onnx_ai_rt.to_ortvalue(array))
                    self._binding.bind_ortvalue_output(name, values[name])
                else:
                    self._binding.bind_output(name, "cpu")
            self.run()
        except Exception as error:  # onnxruntime's own types, which differ between releases
            raise Unavailable(str(error).strip().splitlines()[0][:200]) from error
        self._kept = values

    def run(self) -> None:
        """One run."""
        self._session.run_with_iobinding(self._binding)
