"""Output shapes that a session reports before it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from support.attention_calls import Geometry, make_call
from support.onnx_models import ATTENTION_OUTPUTS
from support.sessions import DOMAINS, attention_node, check, make_model, make_session, needs_runtime, run

F32, F16 = np.float32, np.float16

needs_shape_functions = needs_runtime(1, 24, "a shape function that does not crash on omitted inputs")


def shapes(
    inputs: dict[str, tuple[Any, list[Any] | None]],
    declared: dict[str, list[Any]] | None = None,
    *,
    domain: str = "",
    value_type: Any = F32,
    **attributes: Any,
) -> dict[str, list[Any]]:
    """What a session with all four outputs reports."""
    types = dict(zip(ATTENTION_OUTPUTS, (F32, F32, value_type, F32), strict=True))
    outputs = {name: (dtype, (declared or {}).get(name)) for name, dtype in types.items()}
    node = attention_node(inputs, ATTENTION_OUTPUTS, domain=domain, **attributes)
    return {o.name: o.shape for o in make_session(make_model([node], inputs, outputs)).get_outputs()}


def unnamed(dim: object) -> bool:
    """A dimension that got a name only because it needs one."""
    return isinstance(dim, str) and dim.startswith("onnx_ai_rt_dim_")


@needs_shape_functions
@pytest.mark.parametrize("domain", DOMAINS)
def test_numbers_and_names(domain: str) -> None:
    inputs = {"Q": (F32, ["b", 8, "s", 64]), "K": (F32, ["b", 2, "n", 64]), "V": (F32, ["b", 2, "n", 48])}
    assert shapes(inputs, domain=domain)["Y"] == ["b", 8, "s", 48]


@needs_shape_functions
def test_rank_3() -> None:
    inputs = {"Q": (F32, ["b", "s", 512]), "K": (F32, ["b", "n", 128]), "V": (F16, ["b", "n", 96])}
    assert shapes(inputs, q_num_heads=8, kv_num_heads=2, value_type=F16)["Y"] == ["b", "s", 384]


@needs_shape_functions
def test_declared_names_are_kept() -> None:
    inputs = {name: (F32, ["b", 2, "s", 64]) for name in ("Q", "K", "V")}
    past = {name: (F32, ["b", 2, "past", 64]) for name in ("past_key", "past_value")}
    declared = {name: ["batch", 2, "total", 64] for name in ("present_key", "present_value")}
    got = shapes(inputs | past, declared | {"Y": ["batch", 2, "rows", "width"]})
    assert got["present_key"] == got["present_value"] == ["batch", 2, "total", 64]
    assert got["Y"] == ["batch", 2, "rows", 64]


@needs_shape_functions
def test_unknown_dimensions_get_names_of_their_own() -> None:
    inputs = {"Q": (F32, [None] * 4), "K": (F32, ["b", None, None, 64]), "V": (F32, [None] * 4)}
    first, second = shapes(inputs)["Y"], shapes(inputs)["Y"]
    assert first[0] == second[0] == "b"
    assert all(map(unnamed, [*first[1:], *second[1:]]))
    assert len({*first, *second}) == 7


@needs_shape_functions
def test_unknown_ranks() -> None:
    assert shapes(dict.fromkeys(("Q", "K", "V"), (F32, None)))["Y"] == []


@needs_shape_functions
def test_shapes_pass_through_a_chain() -> None:
    """Nodes with one output: a shape function that sets more writes where it must not."""
    names = ["Q", *(f"y{i}" for i in range(8))]
    nodes = [helper.make_node("Attention", [names[i], "K", "V"], [names[i + 1]]) for i in range(8)]
    inputs = {"Q": (F32, ["b", 8, "s", 64]), "K": (F32, ["b", 2, "n", 64]), "V": (F32, ["b", 2, "n", 64])}
    for _ in range(20):
        (output,) = make_session(make_model(nodes, inputs, {"y7": (F32, None)})).get_outputs()
        assert output.shape == ["b", 8, "s", 64]


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(
    "names",
    [
        ("Q", "K", "V"),
        ("Q", "K", "V", "past_key", "past_value"),
        ("Q", "K", "V", "attn_mask"),
        ("Q", "K", "V", "nonpad_kv_seqlen"),
        ("Q", "K", "V", "attn_mask", "nonpad_kv_seqlen"),
        ("Q", "K", "V", "attn_mask", "past_key", "past_value"),
    ],
    ids="-".join,
)
def test_omitted_inputs_do_not_disturb_it(names: tuple[str, ...], domain: str) -> None:
    call = make_call(
        Geometry(B=1, Hq=4, Hkv=2, S=3, L=2 if "past_key" in names else None, N=3),
        np.random.default_rng(0),
        attn_mask=np.zeros((3, 3), F32) if "attn_mask" in names else None,
        nonpad_kv_seqlen=np.array([2]) if "nonpad_kv_seqlen" in names else None,
    )
    node = attention_node(names, ("Y", "present_value"), domain=domain)
    inputs = {name: (x.dtype, ["b", *x.shape[1:]]) if x.ndim else (x.dtype, []) for name, x in call.inputs.items()}
    if "attn_mask" in inputs:
        inputs["attn_mask"] = (F32, [3, 3])
    session = make_session(make_model([node], inputs, {"Y": (F32, None), "present_value": (F32, None)}))
    got = run(session, call.inputs)
    check(got["Y"], call.oracle()[0])
    np.testing.assert_array_equal(got["present_value"], call.oracle()[2])
