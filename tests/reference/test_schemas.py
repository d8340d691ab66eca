"""The `ai.rt` schemas in onnx's checker and shape inference."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import onnx
import pytest
from onnx import TensorProto, defs, helper

from onnx_ai_rt import register_schemas

FLOAT, HALF, BFLOAT16, DOUBLE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
FORMATS = ("FLOAT", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2")
Info = tuple[int, list[Any] | None]  # element type and dimensions


@pytest.fixture(autouse=True)
def _registered() -> None:
    register_schemas()
    register_schemas()  # does nothing


def model(
    op_type: str, inputs: dict[str, Info], outputs: dict[str, Info], order: str, **attributes: Any
) -> onnx.ModelProto:
    """One ai.rt node. `order`: the node's inputs, "_" for an omitted one."""
    names = ["" if name == "_" else name for name in order.split()]
    infos = [[helper.make_tensor_value_info(n, *info) for n, info in side.items()] for side in (inputs, outputs)]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, list(outputs), domain="ai.rt", **attributes)], "g", *infos
    )
    imports = [helper.make_opsetid("", 22), helper.make_opsetid("ai.rt", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def inferred(made: onnx.ModelProto) -> dict[str, Info]:
    """Types and dimensions of the outputs after the checker and strict shape inference."""
    for output in made.graph.output:
        elem_type = output.type.tensor_type.elem_type
        output.type.tensor_type.Clear()
        output.type.tensor_type.elem_type = elem_type
    result = onnx.shape_inference.infer_shapes(made, check_type=True, strict_mode=True)
    onnx.checker.check_model(result, full_check=True)
    return {
        o.name: (
            o.type.tensor_type.elem_type,
            [_size(d) for d in o.type.tensor_type.shape.dim],
        )
        for o in result.graph.output
    }


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """None for the names that infer_shapes makes up for unknown sizes."""
    if dim.HasField("dim_value"):
        return dim.dim_value
    return None if dim.dim_param.startswith("unk__") else dim.dim_param


def attention(inputs: dict[str, Info], order: str, **attributes: Any) -> dict[str, Info]:
    """Inferred outputs of ai.rt::Attention."""
    query, value = inputs["Q"][0], inputs["V"][0]
    outputs = {"Y": query, "present_key": query, "present_value": value, "scores": query}
    made = model("Attention", inputs, {name: (t, None) for name, t in outputs.items()}, order, **attributes)
    return inferred(made)


def test_names() -> None:
    names = {s.name for s in defs.get_all_schemas() if s.domain == "ai.rt"}
    assert names == {"Attention", "QuantizePagedCache", "PagedAttention", "PagedCacheLength"}


def test_attention_of_rank_4_keeps_symbols() -> None:
    shapes = {"Q": (HALF, ["B", 8, "S", 64]), "K": (HALF, ["B", 2, "N", 64]), "V": (BFLOAT16, ["B", 2, "N", 32])}
    assert attention(shapes, "Q K V") == {
        "Y": (HALF, ["B", 8, "S", 32]),
        "present_key": (HALF, ["B", 2, "N", 64]),
        "present_value": (BFLOAT16, ["B", 2, "N", 32]),
        "scores": (HALF, ["B", 8, "S", "N"]),
    }


def test_attention_of_rank_3_with_past() -> None:
    shapes: dict[str, Info] = {"Q": (FLOAT, ["B", 1, 48]), "K": (FLOAT, ["B", 1, 12]), "V": (DOUBLE, ["B", 1, 10])}
    shapes |= {"pk": (FLOAT, ["B", 2, 7, 6]), "pv": (DOUBLE, ["B", 2, 7, 5]), "mask": (TensorProto.INT16, ["S", "T"])}
    assert attention(shapes, "Q K V mask pk pv", q_num_heads=8, kv_num_heads=2, scale=0.5, is_causal=1) == {
        "Y": (FLOAT, ["B", 1, 40]),
        "present_key": (FLOAT, ["B", 2, 8, 6]),
        "present_value": (DOUBLE, ["B", 2, 8, 5]),
        "scores": (FLOAT, ["B", 8, 1, 8]),
    }
    shapes |= {"pk": (FLOAT, ["B", 2, "L", 6]), "pv": (DOUBLE, ["B", 2, "L", 5])}
    got = attention(shapes, "Q K V _ pk pv", q_num_heads=8, kv_num_heads=2)
    assert got["present_key"] == (FLOAT, ["B", 2, None, 6])


def test_attention_with_lengths_and_windows() -> None:
    shapes = {name: (FLOAT, ["B", 2, "S", 8]) for name in "QKV"} | {"n": (TensorProto.INT64, ["B"])}
    got = attention(shapes, "Q K V _ _ _ n", left_window_size=4, right_window_size=0, softcap=1.5, softmax_precision=11)
    assert got["Y"] == (FLOAT, ["B", 2, "S", 8])


def test_attention_of_unknown_rank() -> None:
    shapes = {name: (FLOAT, ["B", 2, "S", 8]) for name in "QKV"}
    made = model("Attention", shapes, {"Y": (FLOAT, None)}, "Q K V")
    del made.graph.input[0].type.tensor_type.shape.dim[:]
    made.graph.input[0].type.tensor_type.ClearField("shape")
    result = onnx.shape_inference.infer_shapes(made, strict_mode=True)
    assert not result.graph.output[0].type.tensor_type.HasField("shape")


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([2, 3], {}, "rank of 'Q': expected 3 or 4, got 2"),
        ([1, 4, 10], {"q_num_heads": 4, "kv_num_heads": 2}, "expected a multiple of 4 heads, got 10"),
        ([1, 4, 8], {"kv_num_heads": 2}, "attribute 'q_num_heads': expected a positive value"),
    ],
)
def test_wrong_shapes_fail(shapes: list[int], attributes: dict[str, int], message: str) -> None:
    infos = {name: (FLOAT, shapes if name == "Q" else [1, 4, 8]) for name in "QKV"}
    made = model("Attention", infos, {"Y": (FLOAT, None)}, "Q K V", **attributes)
    with pytest.raises(onnx.shape_inference.InferenceError, match=message):
        onnx.shape_inference.infer_shapes(made, strict_mode=True)


@pytest.mark.parametrize("elem_type", [TensorProto.INT32, TensorProto.FLOAT8E4M3FN])
def test_wrong_types_fail(elem_type: int) -> None:
    made = model("Attention", {n: (elem_type, [1, 2, 3, 4]) for n in "QKV"}, {"Y": (elem_type, None)}, "Q K V")
    with pytest.raises(onnx.shape_inference.InferenceError, match="Q"):
        onnx.shape_inference.infer_shapes(made, check_type=True, strict_mode=True)


def test_checker_refuses_unknown_attributes_and_missing_inputs() -> None:
    infos = {name: (FLOAT, [1, 2, 3, 4]) for name in "QKV"}
    outputs = {"Y": (FLOAT, [1, 2, 3, 4])}
    with pytest.raises(onnx.checker.ValidationError, match="block_size"):
        onnx.checker.check_model(model("Attention", infos, outputs, "Q K V", block_size=3))
    with pytest.raises(onnx.checker.ValidationError, match="input"):
        onnx.checker.check_model(model("Attention", infos, outputs, "Q K"))


@pytest.mark.parametrize("key", FORMATS)
@pytest.mark.parametrize("value", FORMATS)
def test_quantize_paged_cache(key: str, value: str) -> None:
    inputs = {
        "cache": (TensorProto.UINT8, ["bytes"]),
        "blocks": (TensorProto.INT64, ["n"]),
        "ks": (FLOAT, []),
        "kz": (TensorProto.DataType.Value(key), []),
        "vs": (FLOAT, [1]),
        "vz": (TensorProto.DataType.Value(value), [1]),
    }
    made = model("QuantizePagedCache", inputs, {"out": (TensorProto.UINT8, None)}, "cache blocks ks kz vs vz")
    assert inferred(made) == {"out": (TensorProto.UINT8, [None])}


def paged_attention(elem_type: int, order: str, **inputs: Info) -> dict[str, Info]:
    """Inferred outputs of ai.rt::PagedAttention."""
    infos: dict[str, Info] = {
        "Q": (elem_type, ["B", 8, "S", 64]),
        "K": (elem_type, ["B", 2, "S", 64]),
        "V": (elem_type, ["B", 2, "S", 32]),
        "past": (TensorProto.UINT8, ["bytes"]),
    } | inputs
    outputs = {"Y": (elem_type, None), "present": (TensorProto.UINT8, None), "appended": (TensorProto.UINT8, None)}
    return inferred(model("PagedAttention", infos, outputs, order, block_size=64, max_tokens=100, is_causal=0))


@pytest.mark.parametrize("elem_type", [FLOAT, HALF, BFLOAT16])
def test_paged_attention(elem_type: int) -> None:
    scale, int4 = (FLOAT, []), (TensorProto.INT4, [])
    for order, extra in (
        ("Q K V past", {}),
        ("Q K V past ks kz", {"ks": scale, "kz": int4}),
        ("Q K V past _ _ vs vz", {"vs": scale, "vz": (TensorProto.UINT2, [])}),
        ("Q K V past ks kz vs vz", {"ks": scale, "kz": int4, "vs": scale, "vz": (FLOAT, [])}),
    ):
        assert paged_attention(elem_type, order, **extra) == {
            "Y": (elem_type, ["B", 8, "S", 32]),
            "present": (TensorProto.UINT8, [None]),
            "appended": (TensorProto.UINT8, [None]),
        }


def test_paged_attention_in_double_fails() -> None:
    with pytest.raises(onnx.shape_inference.InferenceError, match="Q"):
        paged_attention(DOUBLE, "Q K V past")


def test_paged_cache_length() -> None:
    made = model("PagedCacheLength", {"cache": (TensorProto.UINT8, ["n"])}, {"out": (TensorProto.INT64, None)}, "cache")
    assert inferred(made) == {"out": (TensorProto.INT64, [])}


def test_defaults() -> None:
    schema = defs.get_schema("PagedAttention", 1, "ai.rt")
    values = {
        name: helper.get_attribute_value(a.default_value) for name, a in schema.attributes.items() if name != "scale"
    }
    assert values == {"block_size": 16, "max_tokens": 0, "is_causal": 1, "left_window_size": -1, "softcap": 0.0}
    assert not schema.attributes["scale"].required


@pytest.mark.parametrize("code", ["", "defs.deregister_schema('Attention', 1, 'ai.rt')", "raise SystemExit(0)"])
def test_the_interpreter_ends_cleanly(code: str) -> None:
    """onnx's registry outlives the interpreter and must not hold Python functions then."""
    program = f"from onnx import defs; import onnx_ai_rt; onnx_ai_rt.register_schemas(); {code}"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("first", ["onnx.reference", "onnx_ai_rt"])
def test_beside_onnx_reference_in_either_order(first: str) -> None:
    """onnx.reference refuses to load where a name has a schema in two domains."""
    lines = ["import onnx.reference", "import onnx_ai_rt; onnx_ai_rt.register_schemas()"]
    program = "\n".join(lines if first == "onnx.reference" else lines[::-1])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
