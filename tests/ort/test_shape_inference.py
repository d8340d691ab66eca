"""Output shapes that a session reports before it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
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
    assert shapes(inputs, domain=domain) == {
        "Y": ["b", 8, "s", 48],
        "present_key": ["b", 2, "n", 64],
        "present_value": ["b", 2, "n", 48],
        "qk_matmul_output": ["b", 8, "s", "n"],
    }


@needs_shape_functions
def test_past_and_new_tokens_add_up() -> None:
    new = {"Q": (F32, [1, 8, 3, 64]), "K": (F32, [1, 2, "n", 64]), "V": (F32, [1, 2, "n", 64])}
    past = {"past_key": (F32, [1, 2, "past", 64]), "past_value": (F32, [1, 2, "past", 64])}
    assert shapes(new | past)["present_key"] == [1, 2, "past + n", 64]
    fixed = {"past_key": (F32, [1, 2, 10, 64]), "past_value": (F32, [1, 2, 10, 64])}
    assert shapes(new | fixed)["present_value"] == [1, 2, "10 + n", 64]
    new = {"Q": (F32, [1, 8, 3, 64]), "K": (F32, [1, 2, 3, 64]), "V": (F32, [1, 2, 3, 64])}
    assert shapes(new | fixed)["qk_matmul_output"] == [1, 8, 3, 13]
    empty = {"past_key": (F32, [1, 2, 0, 64]), "past_value": (F32, [1, 2, 0, 64])}
    assert shapes(new | empty)["present_key"] == [1, 2, 3, 64]


@needs_shape_functions
def test_rank_3() -> None:
    inputs = {"Q": (F32, ["b", "s", 512]), "K": (F32, ["b", "n", 128]), "V": (F16, ["b", "n", 96])}
    assert shapes(inputs, q_num_heads=8, kv_num_heads=2, value_type=F16) == {
        "Y": ["b", "s", 384],
        "present_key": ["b", 2, "n", 64],
        "present_value": ["b", 2, "n", 48],
        "qk_matmul_output": ["b", 8, "s", "n"],
    }


@needs_shape_functions
def test_declared_names_are_kept() -> None:
    inputs = {name: (F32, ["b", 2, "s", 64]) for name in ("Q", "K", "V")}
    past = {name: (F32, ["b", 2, "past", 64]) for name in ("past_key", "past_value")}
    declared = {name: ["batch", 2, "total", 64] for name in ("present_key", "present_value")}
    got = shapes(inputs | past, declared | {"Y": ["batch", 2, "rows", "width"]})
    assert got["present_key"] == ["batch", 2, "total", 64]
    assert got["Y"] == ["batch", 2, "rows", 64]


@needs_shape_functions
def test_unknown_dimensions_get_names_of_their_own() -> None:
    got = shapes({"Q": (F32, [None] * 4), "K": (F32, [None] * 4), "V": (F32, ["b", 2, None, 64])})
    batch, heads, total, width = got["present_key"]
    assert (batch, heads) == ("b", 2)
    assert unnamed(total)
    assert unnamed(width)
    assert got["present_value"] == ["b", 2, total, 64]
    assert got["Y"][3] == 64
    _, q_heads, rows, keys = got["qk_matmul_output"]
    assert keys == total
    assert len({q_heads, rows, total, width}) == 4
    other = shapes({"Q": (F32, [None] * 4), "K": (F32, [None] * 4), "V": (F32, [None] * 4)})
    assert not {d for s in other.values() for d in s} & {q_heads, rows, total, width}


@needs_shape_functions
def test_unknown_ranks() -> None:
    got = shapes(dict.fromkeys(("Q", "K", "V"), (F32, None)))
    assert all(len(got[name]) == 4 and all(map(unnamed, got[name])) for name in ATTENTION_OUTPUTS[1:])


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
