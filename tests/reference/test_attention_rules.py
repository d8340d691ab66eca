"""The reference on hand-made inputs: the rules, above all where onnx's ReferenceEvaluator fails or differs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.attention_calls import INTEGER_TYPES, Geometry, make_call

from onnx_ai_rt.reference import attention

RNG = np.random.default_rng(7)
INF, NAN = float("inf"), float("nan")


def simple(S: int = 2, T: int = 3, B: int = 1, H: int = 1, D: int = 4) -> dict[str, np.ndarray]:
    """Q, K, V of float."""
    shapes = {"Q": (B, H, S, D), "K": (B, H, T, D), "V": (B, H, T, D)}
    return {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def softmax(x: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def by_hand(x: dict[str, np.ndarray], bias: Any = 0.0, scale: float = 0.5) -> np.ndarray:
    """Y without any hidden key, in double."""
    q, k, v = (np.float64(x[name]) for name in "QKV")
    return softmax(q @ k.swapaxes(-1, -2) * scale + bias) @ v


# Masks


def test_number_and_bool_masks_of_rank_0() -> None:
    x = simple()
    np.testing.assert_allclose(attention(**x, attn_mask=np.array(2.5, np.float32))[0], by_hand(x), rtol=1e-6)
    np.testing.assert_allclose(attention(**x, attn_mask=np.array(True))[0], by_hand(x), rtol=1e-6)
    assert not attention(**x, attn_mask=np.array(False))[0].any()
    assert not attention(**x, attn_mask=np.array(-INF, np.float32))[0].any()


@pytest.mark.parametrize("dtype", INTEGER_TYPES, ids=str)
def test_integer_masks_are_added(dtype: np.dtype[Any]) -> None:
    x = simple()
    mask = np.array([[0, 1, 2], [3, 0, 5]], dtype)
    np.testing.assert_allclose(attention(**x, attn_mask=mask)[0], by_hand(x, mask.astype(float)), rtol=1e-6)


def test_integer_mask_with_causal() -> None:
    x = simple()
    bias = np.array([[4.0, -INF, -INF], [4.0, 5.0, -INF]])
    got = attention(**x, attn_mask=np.array([4, 5, 6], np.int32), is_causal=1)[0]
    np.testing.assert_allclose(got, by_hand(x, bias), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.int64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_mask_is_padded_not_broadcast(dtype: Any, length: int) -> None:
    x = simple()
    got = attention(**x, attn_mask=np.ones((2, length), dtype))[0]
    if length == 0:
        assert not got.any()
    else:
        few = {name: a if name == "Q" else a[:, :, :length] for name, a in x.items()}
        np.testing.assert_allclose(got, by_hand(few), rtol=1e-6)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 1, 2, 3), (1, 4, 1, 3), (4, 2, 3), (1, 1, 1, 3), (2, 4, 2, 3)])
def test_masks_broadcast_from_the_right(shape: tuple[int, ...]) -> None:
    x = simple(B=2, H=4)
    mask = RNG.standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(attention(**x, attn_mask=mask)[0], by_hand(x, np.float64(mask)), rtol=1e-5, atol=1e-6)


def test_very_negative_rows_still_average() -> None:
    x = simple()
    mean = np.broadcast_to(np.float64(x["V"]).mean(axis=2, keepdims=True), (1, 1, 2, 4))
    for value in (-1e9, np.finfo(np.float32).min):
        got = attention(**x, attn_mask=np.full((2, 3), value, np.float32))[0]
        np.testing.assert_allclose(got, mean, rtol=1e-6)
    got = attention(**x, attn_mask=np.full((2, 3), np.finfo(np.float64).min))[0]
    np.testing.assert_allclose(got, mean, rtol=1e-6)
    lowest = np.array(ml_dtypes.finfo(ml_dtypes.bfloat16).min).astype(ml_dtypes.bfloat16)
    np.testing.assert_allclose(attention(**x, attn_mask=np.full((2, 3), lowest))[0], mean, rtol=1e-6)


def test_sum_beyond_the_range_is_clamped() -> None:
    x = simple(S=1, T=2)
    x["Q"][:] = 1e19
    x["K"][0, 0, 0], x["K"][0, 0, 1] = -1e19, -8e18  # scores of -2e38 and -1.6e38
    lowest = np.finfo(np.float32).min
    y, _, _, scores = attention(**x, attn_mask=np.full((1, 2), lowest), qk_matmul_output_mode=2)
    assert (scores == lowest).all()
    np.testing.assert_allclose(y, x["V"].mean(axis=2, keepdims=True), rtol=1e-6)
    # In double both sums are in range, and the second key wins by 4e37.
    y = attention(**x, attn_mask=np.full((1, 2), lowest, np.float64))[0]
    np.testing.assert_allclose(y[0, 0, 0], x["V"][0, 0, 1], rtol=1e-6)


def test_bias_is_added_in_the_widest_type() -> None:
    x = {name: a.astype(np.float16) for name, a in simple().items()}
    bias = np.array([1e5, 1e5, -1e5], np.float32)  # beyond float16
    got = attention(**x, attn_mask=bias, rounded=False)[0]
    two = {name: a if name == "Q" else a[:, :, :2] for name, a in x.items()}
    np.testing.assert_allclose(got, by_hand(two), atol=1e-2)
    # float steps at 1e9 are 64 wide and swallow the scores; double's are not.
    x = simple()
    mean = np.broadcast_to(np.float64(x["V"]).mean(axis=2, keepdims=True), (1, 1, 2, 4))
    np.testing.assert_allclose(attention(**x, attn_mask=np.full(3, -1e9, np.float32))[0], mean, rtol=1e-6)
    np.testing.assert_allclose(attention(**x, attn_mask=np.full(3, -1e9))[0], by_hand(x), rtol=1e-6)


# Which keys are seen


def seen(**arguments: Any) -> list[list[list[int]]]:
    """Key numbers that take part, by batch and query row, read from the probabilities."""
    probabilities = attention(**arguments, qk_matmul_output_mode=3)[3]
    return [[np.flatnonzero(row).tolist() for row in batch[0]] for batch in probabilities]


def test_causal_with_and_without_past() -> None:
    x = simple(S=2, T=4)
    assert seen(**x, is_causal=1) == [[[0], [0, 1]]]
    past = {"past_key": x["K"][:, :, :2], "past_value": x["V"][:, :, :2]}
    new = {"Q": x["Q"], "K": x["K"][:, :, 2:], "V": x["V"][:, :, 2:]}
    assert seen(**new, **past, is_causal=1) == [[[0, 1, 2], [0, 1, 2, 3]]]
    nothing = {"past_key": x["K"][:, :, :0], "past_value": x["V"][:, :, :0]}
    assert seen(**x, **nothing, is_causal=1) == [[[0], [0, 1]]]


def test_causal_offset_from_nonpad() -> None:
    x = simple(S=2, T=4, B=4)
    lengths = np.array([0, 1, 2, 4])
    expected = [[[], []], [[], [0]], [[0], [0, 1]], [[0, 1, 2], [0, 1, 2, 3]]]
    assert seen(**x, nonpad_kv_seqlen=lengths, is_causal=1) == expected
    assert seen(**x, nonpad_kv_seqlen=lengths[:, None], is_causal=1) == expected
    y = attention(**x, nonpad_kv_seqlen=lengths, is_causal=1)[0]
    assert not y[0].any()
    assert not y[1, 0, 0].any()


def test_windows() -> None:
    x = simple(S=3, T=5)
    assert seen(**x, left_window_size=1) == [[[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [1, 2, 3, 4]]]
    assert seen(**x, left_window_size=0, right_window_size=0) == [[[0], [1], [2]]]
    assert seen(**x, right_window_size=1) == [[[0, 1], [0, 1, 2], [0, 1, 2, 3]]]
    assert seen(**x, right_window_size=3, is_causal=1) == [[[0], [0, 1], [0, 1, 2]]]
    assert seen(**x, left_window_size=0, nonpad_kv_seqlen=np.array([4])) == [[[1, 2, 3], [2, 3], [3]]]
    # With offset -2 the window of the first two rows lies before the first key.
    assert seen(**x, right_window_size=0, nonpad_kv_seqlen=np.array([1])) == [[[], [], [0]]]


@pytest.mark.parametrize("poison", [NAN, INF, -INF, 3e38])
def test_hidden_keys_have_no_influence(poison: float) -> None:
    attributes = {"is_causal": 1, "left_window_size": 2}
    for changes in (
        {"nonpad_kv_seqlen": np.array([2, 5])},
        {"attn_mask": np.array([True, False, True, True, False, True])},
        {"attn_mask": np.array([[0.5], [-INF], [-INF]], np.float32)},
    ):
        geometry = Geometry(B=2, Hq=2, Hkv=1, S=3, N=6)
        clean, dirty = (
            make_call(geometry, np.random.default_rng(3), poison=value, **changes, **attributes)
            for value in (None, poison)
        )
        assert not np.array_equal(clean.inputs["V"], dirty.inputs["V"])
        np.testing.assert_array_equal(clean.oracle()[0], dirty.oracle()[0])
        for mode in (2, 3):
            scores = dirty.oracle(qk_matmul_output_mode=mode)[3]
            np.testing.assert_array_equal(clean.oracle(qk_matmul_output_mode=mode)[3], scores)
            assert not np.isnan(scores).any()


def test_keys_that_take_part_follow_ieee() -> None:
    x = simple()
    x["K"][0, 0, 1, 2] = NAN
    assert np.isnan(attention(**x)[0]).all()
    assert np.isfinite(attention(**x, is_causal=1)[0][0, 0, 0]).all()
    x = simple()
    x["V"][0, 0, 1, 2] = NAN
    np.testing.assert_array_equal(np.isnan(attention(**x)[0][0, 0]), [[False, False, True, False]] * 2)
    x["V"][0, 0, 1, 2] = -INF
    assert (attention(**x)[0][..., 2] == -INF).all()
    x = simple()
    assert np.isnan(attention(**x, attn_mask=np.array([0, NAN, -INF], np.float32))[0]).all()
    assert np.isnan(attention(**x, attn_mask=np.array([0, INF, -INF], np.float32))[0]).all()
    x["Q"][0, 0, 0, 0] = NAN
    assert np.isnan(attention(**x)[0][0, 0]).any(axis=-1).tolist() == [True, False]
    x = {name: np.ones((1, 1, 2, 4), np.float32) for name in "QKV"}
    x["K"][0, 0, 0] = -INF
    y, _, _, probabilities = attention(**x, is_causal=1, qk_matmul_output_mode=3)
    # inf - inf where no other key is left; the whole row is NaN, as onnx.reference has it for rows with NaN.
    np.testing.assert_array_equal(probabilities[0, 0], [[NAN, NAN], [0, 1]])
    np.testing.assert_array_equal(y[0, 0], [[NAN] * 4, [1] * 4])


# Scale, softcap, scores


@pytest.mark.parametrize("scale", [0.0, -0.75, 3.0, -1e-30])
def test_any_finite_scale(scale: float) -> None:
    x = simple()
    np.testing.assert_allclose(attention(**x, scale=scale)[0], by_hand(x, scale=scale), rtol=1e-5)


def test_softcap_before_bias_and_off_when_negative() -> None:
    x = simple()
    mask = np.array([[0, -INF, 3], [-INF, 1, -2]], np.float32)
    raw = np.float64(x["Q"]) @ np.float64(x["K"]).swapaxes(-1, -2) * 0.5
    capped = 0.25 * np.tanh(raw / 0.25)
    expected = (raw, capped, capped + mask, softmax(capped + mask))
    for mode, scores in enumerate(expected):
        got = attention(**x, attn_mask=mask, softcap=0.25, qk_matmul_output_mode=mode)[3]
        np.testing.assert_allclose(got, scores, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(attention(**x, softcap=-1.0)[0], by_hand(x), rtol=1e-6)


def test_scores_of_rows_without_key() -> None:
    x = simple()
    hidden = np.zeros((2, 3), bool)
    assert np.isneginf(attention(**x, attn_mask=hidden, qk_matmul_output_mode=2)[3]).all()
    assert not attention(**x, attn_mask=hidden, qk_matmul_output_mode=3)[3].any()


def test_half_inputs_do_not_overflow_on_the_way() -> None:
    x = {name: np.full((1, 1, 2, 64), 200.0, np.float16) for name in "QK"}
    x["V"] = RNG.standard_normal((1, 1, 2, 64)).astype(np.float16)
    y, _, _, scores = attention(**x, scale=1e-3)  # the dot product is 2.56e6, float16 ends at 65504
    np.testing.assert_allclose(scores, 2560.0, rtol=1e-3)
    np.testing.assert_allclose(y, np.broadcast_to(x["V"].mean(axis=2, keepdims=True), y.shape), atol=2e-3)


# Shapes


def test_grouped_heads_use_neighbouring_keys() -> None:
    rng = np.random.default_rng(5)
    call = make_call(Geometry(Hq=6, Hkv=2, S=2, N=3), rng)
    y = call.oracle()[0]
    for head in range(6):
        one = {name: a[:, head // 3 if name != "Q" else head][:, None] for name, a in call.inputs.items()}
        np.testing.assert_array_equal(y[:, head], attention(**one)[0][:, 0])


def test_rank_3_is_rank_4_with_heads_joined() -> None:
    geometry = Geometry(B=2, Hq=4, Hkv=2, S=3, L=2, N=2, D=5, Dv=3)
    flat = Geometry(**{**geometry.__dict__, "rank3": True})
    four = make_call(geometry, np.random.default_rng(1)).oracle()
    three = make_call(flat, np.random.default_rng(1)).oracle()
    np.testing.assert_array_equal(three[0], four[0].transpose(0, 2, 1, 3).reshape(2, 3, 12))
    for a, b in zip(three[1:], four[1:], strict=True):
        np.testing.assert_array_equal(a, b)


def test_head_attributes_may_agree_with_rank_4() -> None:
    call = make_call(Geometry(Hq=4, Hkv=2, S=2, N=3), np.random.default_rng(1))
    np.testing.assert_array_equal(call.oracle()[0], call.oracle(q_num_heads=4, kv_num_heads=2)[0])


def test_head_size_0_averages() -> None:
    for scale in (None, 2.0):
        x = simple(D=0)
        x["V"] = RNG.standard_normal((1, 1, 3, 4)).astype(np.float32)
        y, key, _, scores = attention(**x, scale=scale)
        np.testing.assert_allclose(y, np.broadcast_to(x["V"].mean(axis=2, keepdims=True), y.shape), rtol=1e-5)
        assert key.shape == (1, 1, 3, 0)
        assert not scores.any()


@pytest.mark.parametrize("rank3", [False, True])
@pytest.mark.parametrize(
    "changes", [{"B": 0}, {"S": 0}, {"N": 0}, {"D": 0}, {"Dv": 0}, {"N": 0, "L": 0}, {"S": 0, "N": 0, "D": 0, "Dv": 0}]
)
def test_empty_dimensions(changes: dict[str, int], rank3: bool) -> None:
    g = Geometry(**{**{"B": 2, "Hq": 4, "Hkv": 2, "S": 3, "N": 5, "D": 6, "Dv": 7, "rank3": rank3}, **changes})
    for mask in (None, np.zeros((g.S, g.T), np.float32), np.ones((g.B, 1, 1, min(g.T, 1)), bool)):
        y, key, value, scores = make_call(g, np.random.default_rng(0), attn_mask=mask).oracle()
        assert y.shape == ((g.B, g.S, g.Hq * g.Dv) if rank3 else (g.B, g.Hq, g.S, g.Dv))
        assert key.shape == (g.B, g.Hkv, g.T, g.D)
        assert value.shape == (g.B, g.Hkv, g.T, g.Dv)
        assert scores.shape == g.score_shape
        assert not np.isnan(y).any()
        if g.T == 0:
            assert not y.any()


def test_no_keys_takes_a_mask_of_length_1_only() -> None:
    x = simple(T=0)
    assert not attention(**x, attn_mask=np.ones((2, 1), np.float32))[0].any()
    with pytest.raises(ValueError, match="last dimension of 'attn_mask': expected at most 0"):
        attention(**x, attn_mask=np.ones((2, 2), np.float32))


def test_types_of_outputs() -> None:
    call = make_call(Geometry(L=1, N=2), np.random.default_rng(1), ml_dtypes.bfloat16, np.float64)
    y, key, value, scores = call.oracle()
    assert (y.dtype, key.dtype, scores.dtype) == (ml_dtypes.bfloat16,) * 3
    assert value.dtype == np.float64
    assert [a.dtype for a in call.oracle(rounded=False)] == [np.float64, ml_dtypes.bfloat16, np.float64, np.float64]
