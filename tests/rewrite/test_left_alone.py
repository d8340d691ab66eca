"""What is not understood stays as it is, and the report says why."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from rewrite.decoders import decoder

import onnx_ai_rt


def left(model: onnx.ModelProto) -> tuple[str, ...]:
    """Checks that nothing was changed; the reasons, one a node."""
    paged = onnx_ai_rt.to_paged(model)
    assert not paged.changed
    assert paged.caches == ()
    assert paged.model == model
    assert paged.model is not model
    assert str(paged).endswith(f"0 of {len(paged.nodes)} attention nodes changed")
    return tuple(reason for node in paged.left for reason in node.reasons)


def insert(*pairs: tuple[str, str]) -> Callable[[str], str]:
    """A change of the model's text, for decoders of one layer."""

    def change(text: str) -> str:
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        return text

    return change


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (
            "too many",
            "its mask 'mask' is not causal: for 0 past and 2 new tokens the rows see keys 0..1, keys 0..1",
        ),
        ("prefix", "its mask 'mask' is not causal: for 0 past and 2 new tokens the rows see keys 0..1, keys 0..1"),
        (
            "far row",
            "its mask 'mask' is not causal: for 502 past and 3 new tokens the rows see 502 keys, 503 keys, 504 keys",
        ),
        ("small bias", "its mask 'mask' is not causal: it adds -10 to a score"),
        ("data", "its mask 'mask' is not known to be causal: it depends on the values of input 'attention_mask'"),
    ],
)
@pytest.mark.parametrize("style", ["concat", "inside"])
def test_masks(style: str, mask: str, reason: str) -> None:
    assert left(decoder(style, mask=mask)) == (reason, reason)


CONCAT = {
    "causal from the first key": (
        {"mask": "none", "attributes": "is_causal=1"},
        insert(),
        "is_causal=1 without past inputs counts queries from the first key on, not behind the past",
    ),
    "present is read": (
        {},
        insert(("y = Identity(hidden_0)", "top = ReduceMax<keepdims=0>(present_key_0)\n y = Add(hidden_0, top)")),
        "'present_key_0' is also read by ReduceMax 'top'",
    ),
    "past is read": (
        {},
        insert(("y = Identity(hidden_0)", "top = ReduceSum<keepdims=0>(past_value_0)\n y = Add(hidden_0, top)")),
        "'past_value_0' is also read by ReduceSum 'top'",
    ),
    "present is no output": (
        {},
        insert((", float[batch,2,total,8] present_key_0", "")),
        "'present_key_0' is not an output of the graph: nothing keeps it for the next step",
    ),
    "past and new swapped": (
        {},
        insert(("Concat<axis=2>(past_key_0, k_0)", "Concat<axis=2>(k_0, past_key_0)")),
        "the first part of its K, 'k_0', is not an input of the graph",
    ),
    "three parts": (
        {},
        insert(("Concat<axis=2>(past_key_0, k_0)", "Concat<axis=2>(past_key_0, k_0, k_0)")),
        "its K is not a Concat of past and new keys, and it has no past inputs",
    ),
    "scores are asked for": (
        {},
        insert(
            ("a_0 = Attention", 'a_0, "", "", scores = Attention'),
            ("[batch,seq,12] y", "[batch,seq,12] y, float[b,h,s,t] scores"),
        ),
        "its output qk_matmul_output is asked for, and PagedAttention has none",
    ),
    "softmax in double": (
        {"attributes": "softmax_precision=11"},
        insert(),
        "its softmax is in double, and PagedAttention's in float",
    ),
    "other heads": (
        {"repeat": True},
        insert(
            (
                "many_k_0 = Reshape(spread_k_0, merge_k)",
                "turned = Transpose(spread_k_0)\n many_k_0 = Reshape(turned, merge_k)",
            )
        ),
        "its K is not a Concat of past and new keys, and it has no past inputs",
    ),
    "heads tiled": (
        {"repeat": True},
        insert(("many_k_0 = Reshape(spread_k_0, merge_k)", "many_k_0 = Concat<axis=1>(present_key_0, present_key_0)")),
        "the first part of its K, 'present_key_0', is not an input of the graph",
    ),
    "heads mixed": (
        {"repeat": True},
        insert(
            ("one_k_0 = Unsqueeze(present_key_0, axis2)", "one_k_0 = Unsqueeze(present_key_0, to_column)"),
            ("Expand(one_k_0, spread_k)", "Expand(one_k_0, spread_mixed)"),
        ),
        "'many_k_0', which it reads, is not 'present_key_0' with each head repeated",
    ),
    "size without a name": (
        {"named": False, "lengths_from": "whole"},
        insert(),
        "the graph takes size 0 of 'past_key_0', and no input that stays has a size of that name",
    ),
    "old opset": (
        {"domain": "ai.rt"},
        insert(('"": 23', '"": 14')),
        "the model has opset 14, and 15 is the oldest that is converted",
    ),
    "double": (
        {},
        insert(("float[batch,2,past_len,8]", "double[batch,2,past_len,8]")),
        "its keys are DOUBLE, its values FLOAT; PagedAttention takes FLOAT, FLOAT16 or BFLOAT16 for both",
    ),
}

INSIDE = {
    "fixed cache": (
        {},
        insert(("past_key_0, past_value_0)\n", "past_key_0, past_value_0, seq1d)\n")),
        "it has the input nonpad_kv_seqlen: its cache has a fixed size",
    ),
    "past is made": (
        {},
        insert(
            (", past_key_0, past_value_0)\n", ", fresh_key, past_value_0)\n"),
            ("x_placed =", "fresh_key = Neg(past_key_0)\n x_placed ="),
        ),
        "its past_key is not an input of the graph",
    ),
    "one present": (
        {},
        insert(
            ("a_0, present_key_0, present_value_0", "a_0, present_key_0"),
            (", float[batch,2,total,6] present_value_0", ""),
        ),
        "its present_value is not asked for",
    ),
    "right window": (
        {"mask": "none", "attributes": "right_window_size=1"},
        insert(),
        "what its attributes hide is not causal: for 0 past and 2 new tokens the rows see keys 0..1, keys 0..1",
    ),
}


@pytest.mark.parametrize(("options", "change", "reason"), CONCAT.values(), ids=CONCAT.keys())
def test_around_a_concat(options: dict, change: Callable[[str], str], reason: str) -> None:
    assert left(decoder(layers=1, change=change, **options)) == (reason,)


@pytest.mark.parametrize(("options", "change", "reason"), INSIDE.values(), ids=INSIDE.keys())
def test_inside(options: dict, change: Callable[[str], str], reason: str) -> None:
    assert left(decoder("inside", layers=1, change=change, **options)) == (reason,)


def test_one_layer_of_two() -> None:
    """Layers are judged one by one; the model runs with one cache and one pair of tensors."""
    change = insert(("y = Identity(hidden_1)", "top = ReduceMax<keepdims=0>(present_key_1)\n y = Add(hidden_1, top)"))
    paged = onnx_ai_rt.to_paged(decoder(change=change))
    assert [node.changed for node in paged.nodes] == [True, False]
    onnx_ai_rt.register_schemas()
    onnx.checker.check_model(paged.model, full_check=True)
    assert [value.name for value in paged.model.graph.input] == ["x", "cache_0", "past_key_1", "past_value_1"]
    assert [value.name for value in paged.model.graph.output] == ["y", "appended_0", "present_key_1", "present_value_1"]
    assert "1 of 2 attention nodes changed" in str(paged)


def test_other_operators_and_places() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1, "local": 1]>
        other (float[1,2,3] x, bool c, float[1,2,3,4] q) => (float[1,2,3] y, float[1,2,3,4] z, float[1,2,3,4] w) {
            y = com.microsoft.MultiHeadAttention<num_heads=1>(x, x, x)
            z = If (c) <
                then_branch = inner () => (float[1,2,3,4] a) { a = Attention(q, q, q) },
                else_branch = other () => (float[1,2,3,4] b) { b = Identity(q) }
            >
            w = local.f(q)
        }
        <domain: "local", opset_import: ["": 23]> f (q) => (r) { r = Attention(q, q, q) }""")
    assert left(model) == (
        "only Attention of ai.onnx and ai.rt is converted",
        "only nodes of the main graph are converted",
        "only nodes of the main graph are converted",
    )
    places = [node.place for node in onnx_ai_rt.to_paged(model).nodes]
    assert places == ["graph", "graph / z", "function local::f"]


def test_no_attention() -> None:
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 23]> m (float x) => (float y) { y = Neg(x) }')
    assert str(onnx_ai_rt.to_paged(model)) == "the model has no attention nodes"


def test_without_past() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 23]>
        encoder (float[1,2,3,4] q) => (float[1,2,3,4] y) { y = Attention(q, q, q) }""")
    assert left(model) == ("its K is not a Concat of past and new keys, and it has no past inputs",)
