"""Attention in a session: what the adapter must carry, against the reference. The kernels have tests of their own."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import helper
from support.attention_calls import (
    FLOAT_TYPES,
    INTEGER_TYPES,
    AttentionCall,
    Geometry,
    Menu,
    attention_calls,
    make_call,
    mask_values,
)
from support.onnx_models import ATTENTION_OUTPUTS
from support.sessions import (
    DOMAINS,
    OPSET,
    attention_node,
    check,
    check_call,
    counted,
    make_model,
    make_session,
    run,
    run_call,
)

import onnx_ai_rt

PLAIN = Geometry(B=2, Hq=4, Hkv=2, S=3, N=5, D=8, Dv=6)
FLAT = Geometry(B=2, Hq=4, Hkv=2, S=3, N=5, D=8, Dv=6, rank3=True)
PAST = Geometry(B=2, Hq=4, Hkv=2, S=3, L=4, N=3, D=8, Dv=6)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("geometry", [PLAIN, FLAT, PAST], ids=["rank4", "rank3", "past"])
@pytest.mark.parametrize("types", list(itertools.product(FLOAT_TYPES, FLOAT_TYPES)), ids=str)
def test_type_pairs(types: tuple[Any, Any], geometry: Geometry, domain: str) -> None:
    call = make_call(geometry, rng(), *types, is_causal=1)
    check_call(call, ATTENTION_OUTPUTS, domain=domain)


@pytest.mark.parametrize("query_type", FLOAT_TYPES, ids=str)
@pytest.mark.parametrize("mask_type", [np.dtype(np.bool_), *FLOAT_TYPES, *INTEGER_TYPES], ids=str)
def test_mask_types(mask_type: np.dtype[Any], query_type: np.dtype[Any]) -> None:
    mask = mask_values(rng(), (3, 5), mask_type, "some -inf")
    check_call(make_call(PLAIN, rng(), query_type, attn_mask=mask))


@pytest.mark.parametrize("mask_type", [ml_dtypes.int4, ml_dtypes.uint4], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("shape", [(3, 5), (2, 1, 3, 5), (3, 3), ()], ids=str)
def test_four_bit_masks(shape: tuple[int, ...], mask_type: Any) -> None:
    mask = np.asarray(rng().integers(0, 8, shape)).astype(mask_type)
    check_call(make_call(PLAIN, rng(), attn_mask=mask))


@pytest.mark.parametrize("data_type", [25, 26], ids=["uint2", "int2"])  # onnx.TensorProto.DataType
def test_two_bit_masks_are_refused_by_the_runtime(data_type: int) -> None:
    node = helper.make_node("Attention", ["Q", "K", "V", "mask"], ["Y"], domain="ai.rt")
    inputs = {name: (np.float32, [1, 1, 2, 4]) for name in ("Q", "K", "V", "mask")}
    model = make_model([node], inputs, {"Y": (np.float32, None)})
    model.graph.input[3].type.tensor_type.elem_type = data_type
    with pytest.raises(Exception, match=r"(?i)type"):
        make_session(model)


@pytest.mark.parametrize("mask_type", [np.bool_, np.float32, np.int64], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize(
    "shape",
    [
        *((), (5,), (3,), (1,), (0,)),
        *((3, 5), (1, 5), (3, 1), (1, 2)),
        *((4, 3, 5), (1, 3, 5), (4, 1, 5), (4, 1, 3)),
        *((2, 4, 3, 5), (2, 1, 1, 5), (1, 4, 1, 5), (2, 1, 3, 4), (1, 1, 1, 1), (2, 4, 3, 0)),
    ],
    ids=str,
)
def test_mask_shapes(shape: tuple[int, ...], mask_type: Any) -> None:
    mask = mask_values(rng(), shape, np.dtype(mask_type), "some -inf")
    check_call(make_call(PLAIN, rng(), attn_mask=mask))


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("count", range(4))
def test_omitted_outputs(count: int, domain: str) -> None:
    for optional in itertools.combinations(ATTENTION_OUTPUTS[1:], count):
        for geometry in (PLAIN, PAST):
            check_call(make_call(geometry, rng(), qk_matmul_output_mode=3), ("Y", *optional), domain=domain)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("tail", ["none", "past", "nonpad"])
def test_omitted_inputs(tail: str, with_mask: bool, domain: str) -> None:
    geometry = PAST if tail == "past" else PLAIN
    mask = mask_values(rng(), (3, geometry.T), np.dtype(np.bool_), "some -inf") if with_mask else None
    nonpad = np.array([[2], [5]]) if tail == "nonpad" else None
    check_call(make_call(geometry, rng(), attn_mask=mask, nonpad_kv_seqlen=nonpad), domain=domain)


@pytest.mark.parametrize(
    "attributes",
    [
        {"scale": 0.25},
        {"scale": 0.0},
        {"scale": -1.5},
        {"softcap": 0.7},
        {"softcap": -1.0},
        {"is_causal": 1},
        {"is_causal": 0},
        {"left_window_size": 1},
        {"right_window_size": 0},
        {"is_causal": 1, "left_window_size": 0},
        {"softmax_precision": 11},
        {"softmax_precision": 10},
        {"q_num_heads": 4, "kv_num_heads": 2},
        *({"qk_matmul_output_mode": mode, "softcap": 2.0, "is_causal": 1} for mode in range(4)),
    ],
    ids=str,
)
def test_attributes(attributes: dict[str, Any]) -> None:
    for geometry in (PLAIN, PAST):
        check_call(make_call(geometry, rng(), **attributes), ATTENTION_OUTPUTS)


@pytest.mark.parametrize("sizes", [{"B": 0}, {"S": 0}, {"N": 0}, {"D": 0}, {"Dv": 0}, {"L": 0}], ids=str)
def test_empty_dimensions(sizes: dict[str, int]) -> None:
    geometry = Geometry(**{"B": 2, "Hq": 4, "Hkv": 2, "S": 3, "N": 5, **sizes})
    check_call(make_call(geometry, rng()), ATTENTION_OUTPUTS)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(call=attention_calls(Menu(mask_kinds=("plain", "some -inf", "rows of -inf"), most_work=1 << 16)))
def test_any_call(call: AttentionCall) -> None:
    check(run_call(call)["Y"], call.oracle()[0])


# Valid inputs that onnxruntime 1.32's own kernel refuses, or answers differently.
REFUSED = {
    "mask (S,1)": make_call(PLAIN, rng(), attn_mask=np.ones((3, 1), np.bool_)),
    "mask (1,T)": make_call(PLAIN, rng(), attn_mask=mask_values(rng(), (1, 5), np.dtype(np.bool_), "plain")),
    "mask (B,1,1,T)": make_call(PLAIN, rng(), attn_mask=mask_values(rng(), (2, 1, 1, 5), np.dtype(np.bool_), "plain")),
    "mask of rank 1": make_call(PLAIN, rng(), attn_mask=mask_values(rng(), (5,), np.dtype(np.float32), "plain")),
    "short mask": make_call(PLAIN, rng(), attn_mask=mask_values(rng(), (3, 2), np.dtype(np.float32), "plain")),
    "past without present": make_call(PAST, rng()),
    "S = 0": make_call(Geometry(Hq=2, Hkv=2, S=0, N=5), rng()),
    "T = 0": make_call(Geometry(Hq=2, Hkv=2, S=3, N=0), rng()),
    "Dv = 0": make_call(Geometry(Hq=2, Hkv=2, S=3, N=5, Dv=0), rng()),
    "scale = 0": make_call(PLAIN, rng(), scale=0.0),
    "bfloat16": make_call(PLAIN, rng(), ml_dtypes.bfloat16),
    "double": make_call(PLAIN, rng(), np.float64),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_onnxruntimes_own_kernel_refuses(name: str) -> None:
    onnx_ai_rt.kernel_runs(reset=True)
    check_call(REFUSED[name])
    assert counted("Attention") == 1


def test_scores_after_bias_keep_minus_infinity() -> None:
    call = make_call(PLAIN, rng(), is_causal=1, qk_matmul_output_mode=2)
    scores = run_call(call, ATTENTION_OUTPUTS)["qk_matmul_output"]
    assert np.isneginf(scores[0, 0, 0, 1:]).all()


@pytest.mark.parametrize("query_type", FLOAT_TYPES, ids=str)
@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(B=1, Hq=8, Hkv=2, S=1, N=700, D=32, Dv=32),
        Geometry(B=2, Hq=4, Hkv=4, S=70, N=130, D=16, Dv=24),
        Geometry(B=1, Hq=4, Hkv=1, S=5, L=300, N=5, D=64, Dv=64),
    ],
    ids=["one query", "many queries", "past"],
)
def test_result_does_not_depend_on_the_number_of_threads(geometry: Geometry, query_type: np.dtype[Any]) -> None:
    call = make_call(geometry, rng(), query_type, is_causal=int(geometry.S > 1), qk_matmul_output_mode=3)
    for outputs in (("Y",), ATTENTION_OUTPUTS):
        one, two, three = (run_call(call, outputs, threads=threads) for threads in (1, 2, 3))
        for name in outputs:
            assert one[name].tobytes() == two[name].tobytes() == three[name].tobytes()


def test_hidden_keys_may_hold_nan() -> None:
    for poison in (np.nan, np.inf):
        mask = np.array([True, False, True, True, False])
        call = make_call(PLAIN, rng(), attn_mask=mask, poison=poison)
        assert not np.isfinite(call.inputs["V"]).all()
        check_call(call)


def test_inputs_as_numpy_arrays_and_views() -> None:
    """`session.run`, as most programs call it, with a strided and a read-only array."""
    call = make_call(PLAIN, rng())
    inputs = dict(call.inputs)
    wide = np.repeat(inputs["K"], 2, axis=3)
    inputs["K"] = wide[..., ::2]
    inputs["V"].flags.writeable = False
    types = {name: (x.dtype, x.shape) for name, x in inputs.items()}
    session = make_session(make_model([attention_node(inputs)], types, {"Y": (np.float32, None)}))
    check(session.run(None, inputs)[0], call.oracle()[0])


@pytest.mark.parametrize("level", [0, 1, 2, 99])
def test_graph_optimization_levels(level: int) -> None:
    """Attention between other operators, some of which onnxruntime fuses."""
    from onnx import helper

    call = make_call(PLAIN, rng())
    nodes = [
        helper.make_node("Add", ["Q", "Q"], ["Q2"]),
        helper.make_node("Transpose", ["Kt"], ["K"], perm=[0, 2, 1, 3]),
        attention_node(["Q", "K", "V"]),
        helper.make_node("Relu", ["Y"], ["Z"]),
    ]
    nodes[2].input[0] = "Q2"
    inputs = {"Q": call.inputs["Q"], "Kt": call.inputs["K"].transpose(0, 2, 1, 3).copy(), "V": call.inputs["V"]}
    model = make_model(
        nodes, {n: (x.dtype, x.shape) for n, x in inputs.items()}, {"Z": (np.float32, None)}, opset=OPSET
    )
    options = onnx_ai_rt.register(ort.SessionOptions())
    options.graph_optimization_level = ort.GraphOptimizationLevel(level)
    expected = call.oracle(Q=2 * call.inputs["Q"])[0]
    check(run(make_session(model, options), inputs)["Z"], np.maximum(expected, 0))
