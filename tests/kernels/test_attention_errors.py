"""Wrong calls of Attention's kernels: one sentence with operator, input, expected and got, and nothing written."""

from __future__ import annotations

import numpy as np
import pytest
from support.attention_errors import WrongCall, wrong_calls

from onnx_ai_rt import _core


@pytest.mark.parametrize("wrong", wrong_calls(), ids=lambda wrong: wrong.name)
def test_wrong_call(wrong: WrongCall) -> None:
    with pytest.raises(ValueError, match=r"^Attention: .*expected .+, got .+") as error:
        _core.attention(wrong.call.inputs, wrong.call.attributes)
    message = str(error.value)
    assert "\n" not in message
    for word in wrong.words:
        assert word in message


@pytest.mark.parametrize("lengths", [[5, -1], [6, 0]])
def test_nothing_is_written(lengths: list[int]) -> None:
    """The one input whose values can be wrong."""
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((2, 1, 5, 4)).astype(np.float32) for name in "QKV"}
    inputs["nonpad_kv_seqlen"] = np.array(lengths)
    output = np.full((2, 1, 5, 4), np.nan, np.float32)
    with pytest.raises(ValueError, match=r"nonpad_kv_seqlen"):
        _core.attention(inputs, {}, [], 1, {"Y": output})
    assert np.isnan(output).all()


@pytest.mark.parametrize(("batch", "needed"), [(1, "1"), (2, "1 or 2")])
def test_a_mask_dimension_that_must_be_1(batch: int, needed: str) -> None:
    inputs = {name: np.zeros((batch, 1, 5, 4), np.float32) for name in "QKV"}
    inputs["attn_mask"] = np.zeros((3, 1, 5, 5), np.float32)
    with pytest.raises(ValueError, match=f"got dimension 3 where {needed} is needed in shape"):
        _core.attention(inputs, {})


HUGE = 1 << 40


@pytest.mark.parametrize(
    ("shapes", "place"),
    [
        ({"Q": (1, 1, HUGE, 0), "K": (1, 1, HUGE, 0), "V": (1, 1, HUGE, 0)}, "input K: .* qk_matmul_output"),
        ({"Q": (0, 1, HUGE, 5), "K": (0, 1, 0, 5), "V": (0, 1, 0, HUGE)}, "input V: .* Y"),
    ],
    ids=["scores", "output"],
)
def test_empty_shapes_that_are_too_large(shapes: dict[str, tuple[int, ...]], place: str) -> None:
    inputs = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match=rf"^Attention: {place} with a product below 2\^63, .*, got \(\d"):
        _core.attention(inputs, {})
