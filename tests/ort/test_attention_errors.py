"""Every wrong call is refused with one clear sentence, and leaves the session usable."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from support.attention_calls import Geometry, make_call
from support.attention_errors import WrongCall, wrong_calls
from support.sessions import DOMAINS, attention_node, check, make_model, make_session, run, run_call

# onnxruntime itself refuses what the operator's signature excludes, when it loads the model.
BY_SIGNATURE = [call for call in wrong_calls() if call.name.startswith("type of")]
BY_KERNEL = [call for call in wrong_calls() if not call.name.startswith("type of")]


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("wrong", BY_KERNEL, ids=lambda wrong: wrong.name)
def test_kernel_refuses(wrong: WrongCall, domain: str) -> None:
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT|RUNTIME_EXCEPTION") as caught:
        run_call(wrong.call, domain=domain)
    text = str(caught.value)
    message = re.search(r"(?:Status Message|initialization): (.*)", text, re.DOTALL)
    assert message is not None, text
    assert message[1].startswith("ai.rt::Attention: " if domain else "Attention: ")
    assert "\n" not in message[1].strip()
    for word in wrong.words:
        assert word in message[1]


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("wrong", BY_SIGNATURE, ids=lambda wrong: wrong.name)
def test_signature_refuses(wrong: WrongCall, domain: str) -> None:
    with pytest.raises(Exception, match=r"(?i)type|NOT_IMPLEMENTED"):
        run_call(wrong.call, domain=domain)


def test_there_are_wrong_calls() -> None:
    assert len(BY_KERNEL) > 40
    assert len(BY_SIGNATURE) >= 5


def test_session_works_after_an_error() -> None:
    inputs = {"Q": (np.float32, [None] * 4), "K": (np.float32, [None] * 4), "V": (np.float32, [None] * 4)}
    session = make_session(make_model([attention_node(inputs)], inputs, {"Y": (np.float32, None)}))
    good = make_call(Geometry(B=2, Hq=4, Hkv=2, S=3, N=5), np.random.default_rng(0))
    bad = {**good.inputs, "V": good.inputs["V"][:1]}
    for _ in range(3):
        with pytest.raises(Exception, match="Attention: input V"):
            run(session, bad)
        check(run(session, good.inputs)["Y"], good.oracle()[0])


WRONG_TYPES: list[dict[str, Any]] = [
    {"scale": 1},
    {"is_causal": 1.0},
    {"softcap": "big"},
    {"q_num_heads": [4]},
    {"left_window_size": [1.0]},
]


@pytest.mark.parametrize(("attributes", "domain"), list(itertools.product(WRONG_TYPES, DOMAINS)), ids=str)
def test_attribute_of_another_type(attributes: dict[str, Any], domain: str) -> None:
    (name,) = attributes
    inputs = {"Q": (np.float32, [None] * 4), "K": (np.float32, [None] * 4), "V": (np.float32, [None] * 4)}
    model = make_model([attention_node(inputs, domain=domain, **attributes)], inputs, {"Y": (np.float32, None)})
    operator = "ai.rt::Attention" if domain else "Attention"
    expected = "a float" if name in ("scale", "softcap") else "an integer"
    with pytest.raises(Exception, match=f"{operator}: attribute {name} of node 'attention' must be {expected}, got"):
        make_session(model)
