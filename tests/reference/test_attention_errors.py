"""What the reference refuses, and that it says so in one sentence."""

from __future__ import annotations

import numpy as np
import pytest
from support.attention_calls import Geometry, make_call
from support.attention_errors import WrongCall, wrong_calls


@pytest.mark.parametrize("wrong", wrong_calls(), ids=lambda wrong: wrong.name)
def test_wrong_call(wrong: WrongCall) -> None:
    with pytest.raises(ValueError, match=r"^ai\.rt::Attention: .+: expected .+, got .+") as error:
        wrong.call.oracle(op_name="ai.rt::Attention")
    message = str(error.value)
    assert "\n" not in message
    for word in wrong.words:
        assert word in message


def test_a_whole_message() -> None:
    call = make_call(Geometry(Hq=4, Hkv=2, S=3, N=5), np.random.default_rng(0))
    with pytest.raises(ValueError, match="got") as error:
        call.oracle(attn_mask=np.zeros((2, 5), np.float32))
    assert str(error.value) == "Attention: dimension 0 of 'attn_mask': expected 1 or 3, got 2 (shape (2,5))"
    with pytest.raises(ValueError, match=r"dimension 0 of 'attn_mask': expected 1, got 2 "):
        call.oracle(attn_mask=np.zeros((2, 1, 3, 5), np.float32))
