"""Attention inside whole graphs: subgraphs, functions, chains, and a model that PyTorch exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.attention_calls import Geometry, make_call
from support.sessions import (
    DOMAINS,
    NEWEST_OPSET,
    OPSET,
    attention_node,
    check,
    counted,
    make_model,
    make_options,
    make_session,
    run,
)

import onnx_ai_rt

CALL = make_call(Geometry(B=1, Hq=4, Hkv=2, S=3, N=5), np.random.default_rng(0))
NAMES = ("Q", "K", "V")
TYPES: dict[str, tuple[Any, Any]] = {name: (np.float32, [None] * 4) for name in NAMES}
MODEL = Path(__file__).parents[2] / "examples" / "data" / "tiny_pycode_lm.onnx"


def operator(domain: str) -> str:
    return "ai.rt::Attention" if domain else "Attention"


@pytest.mark.parametrize("domain", DOMAINS)
def test_in_a_branch(domain: str) -> None:
    y = helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)
    then_branch = helper.make_graph([attention_node(NAMES, domain=domain)], "then", [], [y])
    else_branch = helper.make_graph([helper.make_node("Identity", ["Q"], ["Y"])], "else", [], [y])
    node = helper.make_node("If", ["cond"], ["out"], then_branch=then_branch, else_branch=else_branch)
    session = make_session(make_model([node], {"cond": (np.bool_, []), **TYPES}, {"out": (np.float32, None)}))
    onnx_ai_rt.kernel_runs(reset=True)
    check(run(session, {**CALL.inputs, "cond": np.array(True)})["out"], CALL.oracle()[0])
    assert counted(operator(domain)) == 1
    np.testing.assert_array_equal(run(session, {**CALL.inputs, "cond": np.array(False)})["out"], CALL.inputs["Q"])
    assert counted(operator(domain)) == 1


@pytest.mark.parametrize("domain", DOMAINS)
def test_in_a_loop(domain: str) -> None:
    """Y becomes the next Q."""
    attention = attention_node(NAMES, domain=domain)
    attention.input[0], attention.output[0] = "q", "next_q"
    body = helper.make_graph(
        [attention, helper.make_node("Identity", ["go_on"], ["still"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("q", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next_q", TensorProto.FLOAT, None),
        ],
    )
    node = helper.make_node("Loop", ["count", "", "Q"], ["out"], body=body)
    session = make_session(make_model([node], {"count": (np.int64, []), **TYPES}, {"out": (np.float32, None)}))
    onnx_ai_rt.kernel_runs(reset=True)
    got = run(session, {**CALL.inputs, "count": np.array(3)})["out"]
    assert counted(operator(domain)) == 3
    expected = CALL.inputs["Q"]
    for _ in range(3):
        expected = CALL.oracle(Q=expected)[0]
    check(got, expected)


@pytest.mark.parametrize("domain", DOMAINS)
def test_in_a_function(domain: str) -> None:
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.rt", 1)]
    inside = attention_node(NAMES, domain=domain, is_causal=1)
    function = helper.make_function("mine", "Attend", list(NAMES), ["Y"], [inside], opsets)
    node = helper.make_node("Attend", NAMES, ["Y"], domain="mine")
    model = make_model([node], TYPES, {"Y": (np.float32, None)}, functions=[function], imports={"mine": 1})
    session = make_session(model)
    onnx_ai_rt.kernel_runs(reset=True)
    check(run(session, CALL.inputs)["Y"], CALL.oracle(is_causal=1)[0])
    assert counted(operator(domain)) == 1


@pytest.mark.parametrize("domain", DOMAINS)
def test_constant_inputs(domain: str) -> None:
    """onnxruntime may compute such a node when it loads the model."""
    constants = [numpy_helper.from_array(CALL.inputs[name], name) for name in NAMES]
    model = make_model([attention_node(NAMES, domain=domain)], {}, {"Y": (np.float32, None)}, initializers=constants)
    check(run(make_session(model), {})["Y"], CALL.oracle()[0])


def test_cache_fed_back_as_past() -> None:
    """Token by token, present becomes past; the result is that of one causal call."""
    call = make_call(Geometry(B=2, Hq=4, Hkv=2, S=9, N=9, D=8, Dv=12), np.random.default_rng(0), is_causal=1)
    names = (*NAMES, "past_key", "past_value")
    outputs = ("Y", "present_key", "present_value")
    types = {name: (np.float32, [None] * 4) for name in names}
    node = attention_node(names, outputs, is_causal=1)
    session = make_session(make_model([node], types, dict.fromkeys(outputs, (np.float32, None))))
    past = {"past_key": np.zeros((2, 2, 0, 8), np.float32), "past_value": np.zeros((2, 2, 0, 12), np.float32)}
    rows = []
    for i in range(9):
        got = run(session, {name: x[:, :, i : i + 1] for name, x in call.inputs.items()} | past)
        rows.append(got["Y"])
        past = {"past_key": got["present_key"], "past_value": got["present_value"]}
    check(np.concatenate(rows, axis=2), call.oracle()[0])
    np.testing.assert_array_equal(past["past_key"], call.inputs["K"])
    np.testing.assert_array_equal(past["past_value"], call.inputs["V"])


@pytest.mark.skipif(NEWEST_OPSET < 23, reason=f"onnxruntime {ort.__version__} does not load the model's opset 23")
@pytest.mark.skipif(not MODEL.exists(), reason="the example's data is not in this checkout")
class TestExportedModel:
    """tiny_pycode_lm.onnx, as PyTorch exported it."""

    prompt = np.frombuffer(b"def __init__(self, ", np.uint8).astype(np.int64)[None]

    def session(self, **settings: Any) -> ort.InferenceSession:
        return make_session(onnx.load(str(MODEL)), make_options(**settings))

    def feeds(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        empty = np.zeros((1, 2, 0, 32), np.float32)
        return {"input_ids": tokens} | {f"past_{kv}_{i}": empty for kv in ("key", "value") for i in range(4)}

    def test_same_logits_as_without_the_library(self) -> None:
        onnx_ai_rt.kernel_runs(reset=True)
        expected = run(self.session(override=False), self.feeds(self.prompt))
        assert onnx_ai_rt.kernel_runs() == []
        got = run(self.session(), self.feeds(self.prompt))
        assert counted("Attention") == 4
        assert got.keys() == expected.keys()
        for name in got:
            np.testing.assert_allclose(got[name], expected[name], rtol=1e-4, atol=1e-4, err_msg=name)

    def test_greedy_decoding_gives_the_same_tokens(self) -> None:
        texts = []
        for override in (False, True):
            session = self.session(override=override)
            feeds, text = self.feeds(self.prompt), []
            for _ in range(24):
                got = run(session, feeds)
                token = np.argmax(got["logits"][:, -1:], axis=-1)
                text.append(token.item())
                feeds = {"input_ids": token}
                feeds |= {f"past_{kv}_{i}": got[f"present_{kv}_{i}"] for kv in ("key", "value") for i in range(4)}
            texts.append(bytes(text))
        assert texts[0] == texts[1]
