"""``python -m onnx_ai_rt``, ``info`` and ``check``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnx_ai_rt
from onnx_ai_rt.cli import main

FLOAT = TensorProto.FLOAT
MODEL = Path(__file__).parents[2] / "examples" / "data" / "tiny_pycode_lm.onnx"


def value(name: str, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [1, 2, 3, 4])


def attention(domain: str = "", inputs: tuple[str, ...] = ("Q", "K", "V"), **attributes: Any) -> onnx.NodeProto:
    name = attributes.pop("name", "attention")
    return helper.make_node("Attention", inputs, ["Y"], domain=domain, name=name, **attributes)


def save(path: Path, nodes: list[onnx.NodeProto], *, opset: int = 23, ir: int = 10, **settings: Any) -> str:
    types = settings.pop("types", {"Q": FLOAT, "K": FLOAT, "V": FLOAT})
    graph = helper.make_graph(nodes, "graph", [value(n, t) for n, t in types.items()], [value("Y")])
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": opset, "ai.rt": 1}.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir, **settings)
    file = path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    return str(file)


def report(capsys: pytest.CaptureFixture[str], file: str) -> dict[str, Any]:
    assert main(["check", file, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def only_node(capsys: pytest.CaptureFixture[str], file: str) -> dict[str, Any]:
    (node,) = report(capsys, file)["nodes"]
    return dict(node)


def test_help() -> None:
    done = subprocess.run([sys.executable, "-m", "onnx_ai_rt", "--help"], capture_output=True, text=True, check=True)
    assert "check" in done.stdout
    assert "info" in done.stdout


def test_no_command_is_wrong_use() -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for word in ("onnxruntime", "numpy", onnx.__version__, np.__version__, onnx_ai_rt.get_library_path()):
        assert word in text
    assert f"chosen: {onnx_ai_rt.cpu_info().chosen}" in text
    assert "ai.onnx::Attention and ai.rt::Attention" in text


@pytest.mark.parametrize(("name", "ignored"), [("AVX9", "AVX9"), ("best", ""), ("", "")])
def test_info_about_the_target_of_the_environment(name: str, ignored: str) -> None:
    command = [sys.executable, "-m", "onnx_ai_rt", "info"]
    environment = {**os.environ, "ONNX_AI_RT_CPU_TARGET": name}
    text, data = (
        subprocess.run([*command, *more], capture_output=True, text=True, check=True, env=environment).stdout
        for more in ([], ["--json"])
    )
    cpu = json.loads(data)["cpu"]
    assert cpu["ignored"] == ignored
    sentence = f"ONNX_AI_RT_CPU_TARGET={name} is ignored: supported here are {', '.join(cpu['targets'])}\n"
    assert (sentence in text) == bool(ignored)


def test_info_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["versions"]["onnx"] == onnx.__version__
    assert info["versions"]["onnx-ai-rt"] == info["library"]["version"] == onnx_ai_rt.__version__
    assert info["cpu"]["chosen"] in info["cpu"]["targets"]
    assert "Attention" in [operator["name"] for operator in info["operators"]]


@pytest.mark.skipif(not MODEL.exists(), reason="the example's data is not in this checkout")
def test_check_of_an_exported_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(MODEL)]) == 0
    text = capsys.readouterr().out
    assert "needs onnxruntime 1.23 or later" in text
    assert text.count("served      ai.onnx::Attention") == 4
    assert "Q:float K:float V:float attn_mask:bool" in text
    assert text.endswith("4 of 4 attention nodes are served\n")


@pytest.mark.parametrize("domain", ["", "ai.onnx", "ai.rt"])
def test_check_serves_attention(domain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = only_node(capsys, save(tmp_path, [attention(domain)]))
    assert node["served"]
    assert node["operator"] == f"{domain or 'ai.onnx'}::Attention"
    assert node["place"] == "graph"
    assert node["types"] == {"Q": "float", "K": "float", "V": "float"}


@pytest.mark.parametrize("op_type", ["MultiHeadAttention", "GroupQueryAttention", "PackedAttention", "Attention"])
def test_check_names_operators_of_onnxruntime(op_type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contrib = helper.make_node(op_type, ["Q", "K", "V"], ["Y"], domain="com.microsoft", name="mha", num_heads=2)
    node = only_node(capsys, save(tmp_path, [contrib]))
    assert not node["served"]
    assert node["operator"] == f"com.microsoft::{op_type}"
    assert "keeps running on onnxruntime's kernel" in node["reasons"][0]
    assert main(["check", str(tmp_path / "model.onnx")]) == 0
    assert "NOT SERVED  com.microsoft" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("node", "types", "reason"),
    [
        (attention(), {"Q": TensorProto.INT8, "K": TensorProto.INT8, "V": FLOAT}, "input Q must be one of float"),
        (attention(), {"Q": FLOAT, "K": TensorProto.FLOAT16, "V": FLOAT}, "Q and K must have one type"),
        (attention(inputs=("Q", "K")), {"Q": FLOAT, "K": FLOAT}, "input V is missing"),
        (attention(rotary=1), {"Q": FLOAT, "K": FLOAT, "V": FLOAT}, "attribute rotary is not one of Attention"),
        (attention(inputs=tuple("QKVQKVQK")), {"Q": FLOAT, "K": FLOAT, "V": FLOAT}, "8 inputs"),
        (attention("ai.rt", name="x"), {"Q": FLOAT, "K": FLOAT, "V": TensorProto.INT4}, "input V must be one of"),
        (attention("other.domain"), {"Q": FLOAT, "K": FLOAT, "V": FLOAT}, "an operator of domain other.domain"),
        (helper.make_node("NewAttention", ["Q"], ["Y"], domain="ai.rt"), {"Q": FLOAT}, "no operator NewAttention"),
    ],
)
def test_check_says_why_not(
    node: onnx.NodeProto, types: dict[str, int], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got = only_node(capsys, save(tmp_path, [node], types=types))
    assert not got["served"]
    assert reason in " ".join(got["reasons"])


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"scale": float("nan")}, "attribute scale must be finite, got nan"),
        ({"scale": 1}, "attribute scale must be a float, got type INT"),
        ({"softcap": float("-inf")}, "attribute softcap must be finite, got -inf"),
        ({"is_causal": 1.0}, "attribute is_causal must be an integer, got type FLOAT"),
        ({"q_num_heads": 0}, "attribute q_num_heads must be 1 or more, got 0"),
        ({"kv_num_heads": -2}, "attribute kv_num_heads must be 1 or more, got -2"),
        ({"q_num_heads": 3, "kv_num_heads": 2}, "attribute q_num_heads must be a multiple of kv_num_heads 2, got 3"),
        ({"qk_matmul_output_mode": 4}, "attribute qk_matmul_output_mode must be 0 to 3, got 4"),
        ({"left_window_size": -2}, "attribute left_window_size must be -1 or more, got -2"),
        ({"right_window_size": -9}, "attribute right_window_size must be -1 or more, got -9"),
    ],
    ids=str,
)
def test_check_judges_attributes(
    attributes: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the operator does: it refuses to run with them."""
    file = save(tmp_path, [attention("ai.rt", **attributes)])
    node = only_node(capsys, file)
    assert (node["served"], node["reasons"]) == (False, [reason])
    import onnxruntime

    options = onnx_ai_rt.register(onnxruntime.SessionOptions())
    feeds = {name: np.zeros((1, 2, 3, 4), np.float32) for name in "QKV"}
    with pytest.raises(Exception, match=next(iter(attributes))):
        onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"]).run(None, feeds)


@pytest.mark.parametrize(
    "attributes",
    [
        {"is_causal": 7, "scale": -0.5, "softcap": -1.0},
        {"q_num_heads": 4, "kv_num_heads": 2, "qk_matmul_output_mode": 3, "softmax_precision": 11},
        {"left_window_size": -1, "right_window_size": 0},
    ],
    ids=str,
)
def test_check_lets_valid_attributes_be(
    attributes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert only_node(capsys, save(tmp_path, [attention(**attributes)]))["served"]


def test_check_of_attributes_that_a_function_hands_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = attention(name="in f")
    node.attribute.add(name="scale", ref_attr_name="s", type=onnx.AttributeProto.FLOAT)
    opsets = [helper.make_opsetid("", 23)]
    function = helper.make_function("mine", "F", ["Q", "K", "V"], ["Y"], [node], opsets, attributes=["s"])
    call = helper.make_node("F", ["Q", "K", "V"], ["Y"], domain="mine", s=float("nan"))
    assert only_node(capsys, save(tmp_path, [call], functions=[function]))["served"]


@pytest.mark.parametrize("kind", ["BOOL", "BFLOAT16", "UINT4", "INT64", "INT2", "UINT2", "FLOAT8E4M3FN", "STRING"])
def test_check_judges_the_type_of_masks(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    types = {"Q": FLOAT, "K": FLOAT, "V": FLOAT, "m": TensorProto.DataType.Value(kind)}
    node = only_node(capsys, save(tmp_path, [attention(inputs=("Q", "K", "V", "m"))], types=types))
    assert node["served"] == (kind in ("BOOL", "BFLOAT16", "UINT4", "INT64"))
    if not node["served"]:
        expected = "bool, a float type or an integer type of 4 bits or more"
        assert node["reasons"] == [f"input attn_mask must be {expected}, got {kind.lower()}"]


def test_check_counts_attention_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the other operators of ai.rt it lists those that are not served."""
    length = helper.make_node("PagedCacheLength", ["cache"], ["n"], domain="ai.rt", name="length")
    paged = helper.make_node("PagedAttention", [*"QKV", "cache"], ["Y"], domain="ai.rt", name="paged", block_size=4)
    types = {"Q": FLOAT, "K": FLOAT, "V": FLOAT, "cache": TensorProto.UINT8}
    file = save(tmp_path, [length, paged], types=types)
    assert [node["node"] for node in report(capsys, file)["nodes"]] == ["paged"]
    assert main(["check", file]) == 0
    assert capsys.readouterr().out.endswith("1 of 1 attention nodes are served\n")
    length.attribute.append(helper.make_attribute("axis", 0))
    paged.attribute[0].i = 0
    file = save(tmp_path, [length, paged], types=types)
    assert main(["check", file]) == 0
    text = capsys.readouterr().out
    assert "NOT SERVED  ai.rt::PagedCacheLength  'length' in graph" in text
    assert "attribute axis is not one of PagedCacheLength" in text
    assert "attribute block_size must be 1 or more, got 0" in text
    assert text.endswith("0 of 1 attention nodes are served\n")


def test_check_looks_into_subgraphs_and_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner = helper.make_graph([attention(name="inner")], "then", [], [helper.make_tensor_value_info("Y", FLOAT, None)])
    other = helper.make_graph([helper.make_node("Identity", ["Q"], ["Y"])], "else", [], [value("Y")])
    branch = helper.make_node("If", ["cond"], ["Y"], then_branch=inner, else_branch=other, name="choice")
    opsets = [helper.make_opsetid("", 23)]
    function = helper.make_function("mine", "Attention", ["Q", "K", "V"], ["Y"], [attention(name="in f")], opsets)
    call = helper.make_node("Attention", ["Q", "K", "V"], ["Z"], domain="mine")
    types = {"Q": FLOAT, "K": FLOAT, "V": FLOAT, "cond": TensorProto.BOOL}
    file = save(tmp_path, [branch, call], types=types, functions=[function])
    nodes = {node["node"]: node for node in report(capsys, file)["nodes"]}
    assert nodes.keys() == {"inner", "in f"}
    assert nodes["inner"]["place"] == "graph / choice (If.then_branch)"
    assert nodes["inner"]["types"]["Q"] == "float"
    assert nodes["in f"]["place"] == "function mine::Attention"
    assert nodes["in f"]["served"]
    assert nodes["in f"]["reasons"] == ["type of Q, K, V is known only at run time"]


@pytest.mark.parametrize(
    ("opset", "ir", "needed"),
    [
        *((21, 10, "1.21"), (23, 10, "1.23"), (24, 10, "1.24"), (26, 10, "1.25"), (28, 14, "1.32")),
        *((22, 11, "1.23"), (22, 13, "1.24"), (99, 10, ""), (22, 99, "")),
    ],
)
def test_check_tells_the_runtime(
    opset: int, ir: int, needed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(capsys, save(tmp_path, [attention()], opset=opset, ir=ir))["needs_onnxruntime"] == needed


def test_check_knows_types_behind_operators_of_this_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = helper.make_node("Attention", ["Q", "K", "V"], ["x"], domain="ai.rt", name="first")
    second = attention(inputs=("x", "K", "V"), name="second")
    nodes = {node["node"]: node for node in report(capsys, save(tmp_path, [first, second]))["nodes"]}
    assert nodes["second"]["types"]["Q"] == "float"


def test_check_of_a_model_without_attention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save(tmp_path, [helper.make_node("Relu", ["Q"], ["Y"])])
    assert main(["check", file]) == 0
    assert "no attention nodes" in capsys.readouterr().out


def test_check_of_what_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.onnx"
    assert main(["check", str(file)]) == 2
    assert capsys.readouterr().err == f"onnx_ai_rt: cannot read {file}: No such file or directory\n"
    file.write_bytes(b"\xff\xff\xff")
    assert main(["check", str(file)]) == 2
    assert f"{file} is not an ONNX model" in capsys.readouterr().err
    file.write_bytes(b"")
    assert main(["check", str(file)]) == 2
    assert "it has no graph" in capsys.readouterr().err
