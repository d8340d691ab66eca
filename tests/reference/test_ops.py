"""The reference operators inside onnx's ReferenceEvaluator."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from support.attention_calls import AttentionCall, Geometry, make_call
from support.onnx_models import ATTENTION_OUTPUTS, attention_model

from onnx_ai_rt import reference_ops
from onnx_ai_rt.reference import attention

DOMAINS = [("ai.rt", 1), ("", 23), ("", 24)]


def run(call: AttentionCall, domain: str = "ai.rt", opset: int = 1) -> dict[str, np.ndarray]:
    """All outputs of a one-node model."""
    model = attention_model(call.inputs, call.attributes, domain=domain, opset=opset)
    results = ReferenceEvaluator(model, new_ops=reference_ops).run(None, call.inputs)
    return dict(zip(ATTENTION_OUTPUTS, results, strict=True))


@pytest.mark.parametrize(("domain", "opset"), DOMAINS)
def test_attention_with_every_attribute(domain: str, opset: int) -> None:
    geometry = Geometry(B=2, Hq=4, Hkv=2, S=3, L=2, N=3, D=4, Dv=6, rank3=True)
    mask = np.array([True, True, False, True])
    call = make_call(
        geometry,
        np.random.default_rng(0),
        ml_dtypes.bfloat16,
        np.float16,
        attn_mask=mask,
        scale=0.5,
        is_causal=1,
        softcap=2.0,
        softmax_precision=TensorProto.DOUBLE,
        qk_matmul_output_mode=2,
        left_window_size=3,
        right_window_size=0,
    )
    for name, expected in zip(ATTENTION_OUTPUTS, call.oracle(), strict=True):
        got = run(call, domain, opset)[name]
        assert got.dtype == expected.dtype
        assert got.tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize(("domain", "opset"), DOMAINS)
def test_attention_that_onnx_cannot_evaluate(domain: str, opset: int) -> None:
    call = make_call(Geometry(S=2, N=3), np.random.default_rng(0), attn_mask=np.array(True), scale=-1.0)
    np.testing.assert_array_equal(run(call, domain, opset)["Y"], call.oracle()[0])


def test_external_cache() -> None:
    lengths = np.array([[2], [3]])
    call = make_call(Geometry(B=2, S=2, N=3), np.random.default_rng(0), nonpad_kv_seqlen=lengths, is_causal=1)
    np.testing.assert_array_equal(run(call)["Y"], call.oracle()[0])


def test_errors_name_the_operator() -> None:
    call = make_call(Geometry(S=2, N=3), np.random.default_rng(0), left_window_size=-5)
    with pytest.raises(ValueError, match=r"^ai\.rt::Attention: attribute 'left_window_size'"):
        run(call)
    with pytest.raises(ValueError, match=r"^Attention: attribute 'left_window_size'"):
        run(call, "", 23)


@pytest.mark.parametrize("domain", ["ai.rt", ""])
def test_an_omitted_output_is_no_later_input(domain: str) -> None:
    rng = np.random.default_rng(0)
    x = {name: rng.standard_normal((1, 1, 3, 4)).astype(np.float32) for name in "QKV"}
    past = rng.standard_normal((1, 1, 2, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Attention", ["Q", "K", "V"], ["Y", "", "", "scores"], domain=domain),
        helper.make_node("Attention", ["Y", "K", "V", "", "past", "past"], ["Z"], domain=domain),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("Q", "K", "V", "past", "Z")]
    graph = helper.make_graph(nodes, "two", infos[:4], infos[4:])
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("ai.rt", 1)]
    evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports), new_ops=reference_ops)
    y = attention(**x)[0]
    expected = attention(y, x["K"], x["V"], past_key=past, past_value=past)[0]
    np.testing.assert_array_equal(evaluator.run(None, {**x, "past": past})[0], expected)
