"""Models and sessions for the tests that run operators in ONNX Runtime, whichever release is installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import onnx_ai_rt
from support.attention_calls import AttentionCall
from support.onnx_models import ATTENTION_INPUTS, ATTENTION_OUTPUTS

RUNTIME = tuple(int(part) for part in ort.__version__.split(".")[:2])
# The newest opset of ai.onnx that each release loads, from the newest release on.
_OPSETS = (((1, 32), 28), ((1, 25), 26), ((1, 24), 25), ((1, 23), 23), ((1, 21), 22))
NEWEST_OPSET = next(opset for release, opset in _OPSETS if release <= RUNTIME)
# What tests use unless they need another one: a release that knows Attention gets an opset that has it.
OPSET = min(NEWEST_OPSET, 23)
IR_VERSION = 10  # every release from 1.21 on loads it

DOMAINS = ("", "ai.rt")


def needs_runtime(major: int, minor: int, why: str) -> pytest.MarkDecorator:
    """Skips a test on older releases."""
    return pytest.mark.skipif(
        (major, minor) > RUNTIME, reason=f"onnxruntime {ort.__version__}: {why} needs {major}.{minor} or later"
    )


def element_type(dtype: Any) -> int:
    """onnx.TensorProto.DataType of a numpy or ml_dtypes type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[Any, Sequence[Any] | None]],
    outputs: Mapping[str, tuple[Any, Sequence[Any] | None]],
    *,
    opset: int = OPSET,
    initializers: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    imports: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model of some nodes; inputs and outputs map names to (type, shape or None)."""
    infos = [
        [helper.make_tensor_value_info(name, element_type(dtype), shape) for name, (dtype, shape) in values.items()]
        for values in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "graph", *infos, initializer=list(initializers))
    domains = {"": opset, "ai.rt": 1, **(imports or {})}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, functions=list(functions))


def attention_node(
    inputs: Iterable[str], outputs: Iterable[str] = ("Y",), *, domain: str = "", **attributes: Any
) -> onnx.NodeProto:
    """A node Attention with these of its inputs and outputs, in whatever order they are named."""
    given, wanted = set(inputs), set(outputs)
    names = [
        [name if name in chosen else "" for name in order]
        for chosen, order in ((given, ATTENTION_INPUTS), (wanted, ATTENTION_OUTPUTS))
    ]
    for values in names:
        while values and not values[-1]:
            values.pop()
    return helper.make_node("Attention", *names, domain=domain, name="attention", **attributes)


def output_types(call: AttentionCall) -> dict[str, Any]:
    """numpy type of each output of a call."""
    query, value = call.inputs["Q"].dtype, call.inputs["V"].dtype
    return dict(zip(ATTENTION_OUTPUTS, (query, query, value, query), strict=True))


def call_model(
    call: AttentionCall, outputs: Iterable[str] = ("Y",), *, domain: str = "", opset: int = OPSET
) -> onnx.ModelProto:
    """A model of one Attention node with the call's types and ranks; dimensions are left open."""
    types = output_types(call)
    return make_model(
        [attention_node(call.inputs, outputs, domain=domain, **call.attributes)],
        {name: (x.dtype, [None] * x.ndim) for name, x in call.inputs.items()},
        {name: (types[name], None) for name in outputs},
        opset=opset,
    )


def make_options(
    *,
    library: bool = True,
    override: bool = True,
    threads: int = 0,
    entries: Mapping[str, str] | None = None,
    severity: int = 4,
) -> ort.SessionOptions:
    """Session options, with the library registered unless told otherwise; ORT's log is silent unless told otherwise."""
    options = ort.SessionOptions()
    options.log_severity_level = severity
    options.intra_op_num_threads = threads
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    if library:
        onnx_ai_rt.register(options, override_onnx_attention=override)
    return options


def make_session(
    model: onnx.ModelProto, options: ort.SessionOptions | None = None, **settings: Any
) -> ort.InferenceSession:
    """A session of these options, or of `make_options(**settings)`."""
    options = make_options(**settings) if options is None else options
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(session: ort.InferenceSession, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All outputs by name, of any type that to_ortvalue and from_ortvalue carry."""
    names = [output.name for output in session.get_outputs()]
    options = ort.RunOptions()
    options.log_severity_level = 4
    values = {name: onnx_ai_rt.to_ortvalue(x) for name, x in inputs.items()}
    results = session.run_with_ort_values(names, values, options)
    return dict(zip(names, map(onnx_ai_rt.from_ortvalue, results), strict=True))


def run_call(
    call: AttentionCall, outputs: Iterable[str] = ("Y",), *, domain: str = "", opset: int = OPSET, **settings: Any
) -> dict[str, np.ndarray]:
    """The call in a session of its own."""
    return run(make_session(call_model(call, outputs, domain=domain, opset=opset), **settings), call.inputs)


def counted(operator: str) -> int:
    """How often the operator's kernels ran since the last reset."""
    return sum(r.count for r in onnx_ai_rt.kernel_runs() if r.operator == operator)


# Half types are rounded once at the end; the probabilities inside carry float's error.
_TOLERANCE = {"float64": (1e-9, 1e-9), "float32": (2e-5, 2e-6), "float16": (2e-3, 1e-3), "bfloat16": (1.6e-2, 8e-3)}


def check(got: np.ndarray, expected: np.ndarray, name: str = "") -> None:
    """Same type and shape, and values that agree as well as the type lets them."""
    assert got.dtype == expected.dtype, name
    assert got.shape == expected.shape, name
    rtol, atol = _TOLERANCE[expected.dtype.name]
    np.testing.assert_allclose(np.float64(got), np.float64(expected), rtol=rtol, atol=atol, err_msg=name)


def check_call(call: AttentionCall, outputs: Iterable[str] = ("Y",), **settings: Any) -> None:
    """The call in a session gives what the reference gives, past and present bit for bit."""
    got = run_call(call, outputs, **settings)
    expected = dict(zip(ATTENTION_OUTPUTS, call.oracle(), strict=True))
    for name in outputs:
        if name.startswith("present"):
            assert got[name].dtype == expected[name].dtype
            np.testing.assert_array_equal(got[name], expected[name], err_msg=name)
        else:
            check(got[name], expected[name], name)
