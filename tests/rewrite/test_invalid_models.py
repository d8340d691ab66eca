"""Models that are not valid: one sentence, or nodes that are left alone, and never an error from inside."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from rewrite.decoders import decoder

from onnx_ai_rt import to_paged
from onnx_ai_rt.cli import main


def without_attributes(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "Concat":
            del node.attribute[:]


def in_a_circle(model: onnx.ModelProto) -> None:
    """Each node reads what the last one gives."""
    for node in model.graph.node:
        if node.op_type in ("Shape", "Concat", "Gather"):
            node.input[0] = model.graph.node[-1].output[0]


def with_short_weights(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        tensor.raw_data = tensor.raw_data[:-1]


def without_inputs_of_attention(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "Attention":
            del node.input[:]


@pytest.mark.parametrize(
    "change",
    [without_attributes, in_a_circle, with_short_weights, without_inputs_of_attention],
)
def test_what_onnx_says_of_it(change: Callable[[onnx.ModelProto], None], tmp_path: Path) -> None:
    model = decoder()
    change(model)
    text = ""
    try:
        assert to_paged(model).left
    except ValueError as error:
        text = str(error)
    assert text == "" or text.startswith("to_paged: model: expected a valid model, got one of which onnx says: ")
    assert "\n" not in text


def test_a_whole_sentence() -> None:
    model = decoder()
    without_attributes(model)
    with pytest.raises(ValueError, match=r"^to_paged: model: expected a valid model, .*Required attribute 'axis'"):
        to_paged(model)


def test_a_mask_by_an_operator_that_nobody_knows() -> None:
    """Of a domain of its own the model is valid: only that node's mask cannot be judged."""
    model = decoder(mask="bool")
    index = next(i for i, node in enumerate(model.graph.node) if node.op_type == "Attention")
    mask = model.graph.node[index].input[3]
    model.graph.node[index].input[3] = "strange"
    model.graph.node.insert(index, helper.make_node("Mask", [mask], ["strange"], domain="somebody"))
    model.opset_import.append(helper.make_opsetid("somebody", 1))
    report = to_paged(model)
    assert len(report.left) == 1
    assert "is not known to be causal: computing it fails" in " ".join(report.left[0].reasons)
    assert "\n" not in " ".join(report.left[0].reasons)


def damaged(rng: random.Random) -> bytes:
    """A decoder with a few changes of its messages or its bytes."""
    model = decoder(mask=rng.choice(["bool", "prefix", "window"]))
    nodes = model.graph.node
    names = ["", "nowhere", *(name for node in nodes for name in node.output)]
    for _ in range(rng.randint(1, 3)):
        node, tensor = rng.choice(nodes), rng.choice(model.graph.initializer)
        kind = rng.randrange(8)
        if kind == 0 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        elif kind == 1 and node.output:
            node.output[rng.randrange(len(node.output))] = rng.choice(names)
        elif kind == 2:
            node.op_type = rng.choice(["Attention", "Concat", "Shape", "Nothing", "Identity", "Slice", "If", "Loop"])
        elif kind == 3:
            tensor.data_type = rng.choice([0, 2, 7, 8, 9, 16, 22, 99])
        elif kind == 4 and tensor.dims:
            tensor.dims[0] = rng.choice([-1, 0, 1 << 62])
        elif kind == 5 and node.attribute:
            rng.choice(node.attribute).type = rng.randrange(9)
        elif kind == 6 and node.attribute:
            del node.attribute[:]
        else:
            rng.choice(model.graph.input).type.Clear()
    data = bytearray(model.SerializeToString())
    for _ in range(rng.choice([0, 0, 1, 3])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


@pytest.mark.parametrize("part", range(5))
def test_damaged_models_on_the_command_line(part: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.onnx"
    for seed in range(40 * part, 40 * part + 40):
        file.write_bytes(damaged(random.Random(seed)))
        for command in (["check", str(file)], ["to-paged", str(file), str(tmp_path / "out.onnx")]):
            code = main(command)
            text = capsys.readouterr().err
            assert text.count("\n") == (code == 2), (seed, text)


def test_types_that_no_longer_fit() -> None:
    """Named, so that a model of the future is not taken for a mistake of ours."""
    model = decoder()
    model.graph.initializer.append(TensorProto(name="new", data_type=99, dims=[1], raw_data=b"\0"))
    assert to_paged(model).changed
