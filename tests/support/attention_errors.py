"""Wrong Attention calls, each with words that its error message must hold: the input or attribute, expected, got."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from support.attention_calls import AttentionCall, Geometry, make_call

NAN, INF = float("nan"), float("inf")
FLAT = Geometry(B=2, Hq=4, Hkv=2, S=3, N=5, D=6, Dv=7, rank3=True)
PLAIN = Geometry(B=2, Hq=4, Hkv=2, S=3, N=5, D=6, Dv=7)
PAST = Geometry(B=2, Hq=4, Hkv=2, S=3, L=4, N=5, D=6, Dv=7)


@dataclass(frozen=True)
class WrongCall:
    """`call` must be refused with a message that holds every one of `words`."""

    name: str
    call: AttentionCall
    words: tuple[str, ...]


def _zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def _table() -> list[tuple[str, Geometry, dict[str, Any], tuple[str, ...]]]:
    """(name, geometry, changed inputs and attributes (None: removed), words)."""
    f16, f64, lengths = np.float16, np.float64, np.array([5, 5])
    return [
        ("Q of rank 2", PLAIN, {"Q": _zeros(3, 6)}, ("Q", "3 or 4", "(3,6)")),
        ("K of rank 3 beside Q of rank 4", PLAIN, {"K": _zeros(2, 5, 12)}, ("K", "4", "(2,5,12)")),
        ("V of rank 3 beside Q of rank 4", PLAIN, {"V": _zeros(2, 5, 14)}, ("V", "4", "(2,5,14)")),
        ("rank 3 without q_num_heads", FLAT, {"q_num_heads": None}, ("q_num_heads",)),
        ("rank 3 without kv_num_heads", FLAT, {"kv_num_heads": None}, ("kv_num_heads",)),
        ("no q heads by attribute", PLAIN, {"q_num_heads": 0}, ("q_num_heads", "positive", "0")),
        ("no kv heads by attribute", PLAIN, {"kv_num_heads": 0}, ("kv_num_heads", "positive", "0")),
        ("negative q_num_heads", FLAT, {"q_num_heads": -4}, ("q_num_heads", "-4")),
        ("q_num_heads does not divide", FLAT, {"q_num_heads": 5}, ("Q", "5", "24")),
        ("kv_num_heads does not divide K", FLAT, {"q_num_heads": 5, "kv_num_heads": 5, "Q": _zeros(2, 3, 25)}, ("K",)),
        ("kv_num_heads does not divide V", FLAT, {"V": _zeros(2, 5, 15)}, ("V", "2", "15")),
        ("q_num_heads against rank 4", PLAIN, {"q_num_heads": 2}, ("q_num_heads", "4", "2")),
        ("kv_num_heads against rank 4", PLAIN, {"kv_num_heads": 4}, ("kv_num_heads", "4", "2")),
        ("query heads no multiple", PLAIN, {"Q": _zeros(2, 3, 3, 6)}, ("3", "2")),
        ("no query heads", PLAIN, {"Q": _zeros(2, 0, 3, 6)}, ("Q", "0")),
        ("no key heads", PLAIN, {"K": _zeros(2, 0, 5, 6), "V": _zeros(2, 0, 5, 7)}, ("K", "0")),
        ("batch of K", PLAIN, {"K": _zeros(1, 2, 5, 6)}, ("K", "2", "1")),
        ("batch of V", PLAIN, {"V": _zeros(3, 2, 5, 7)}, ("V", "2", "3")),
        ("heads of V", PLAIN, {"V": _zeros(2, 4, 5, 7)}, ("V", "2", "4")),
        ("length of V", PLAIN, {"V": _zeros(2, 2, 6, 7)}, ("V", "5", "6")),
        ("head size of K", PLAIN, {"K": _zeros(2, 2, 5, 8)}, ("K", "6", "8")),
        ("type of Q", PLAIN, {"Q": _zeros(2, 4, 3, 6, dtype=np.int32)}, ("Q", "int32")),
        ("type of K", PLAIN, {"K": _zeros(2, 2, 5, 6, dtype=f16)}, ("K", "float", "float16")),
        ("type of V", PLAIN, {"V": _zeros(2, 2, 5, 7, dtype=np.int8)}, ("V", "int8")),
        ("past_key alone", PAST, {"past_value": None}, ("past_key", "past_value")),
        ("past_value alone", PAST, {"past_key": None}, ("past_key", "past_value")),
        ("rank of past_key", PAST, {"past_key": _zeros(2, 4, 12)}, ("past_key", "(2,4,12)")),
        ("rank of past_value", PAST, {"past_value": _zeros(2, 4, 14)}, ("past_value", "(2,4,14)")),
        ("batch of past_key", PAST, {"past_key": _zeros(1, 2, 4, 6)}, ("past_key", "2", "1")),
        ("heads of past_key", PAST, {"past_key": _zeros(2, 4, 4, 6)}, ("past_key", "2", "4")),
        ("head size of past_key", PAST, {"past_key": _zeros(2, 2, 4, 7)}, ("past_key", "6", "7")),
        ("batch of past_value", PAST, {"past_value": _zeros(3, 2, 4, 7)}, ("past_value", "2", "3")),
        ("heads of past_value", PAST, {"past_value": _zeros(2, 1, 4, 7)}, ("past_value", "2", "1")),
        ("length of past_value", PAST, {"past_value": _zeros(2, 2, 3, 7)}, ("past_value", "4", "3")),
        ("head size of past_value", PAST, {"past_value": _zeros(2, 2, 4, 8)}, ("past_value", "7", "8")),
        ("type of past_key", PAST, {"past_key": _zeros(2, 2, 4, 6, dtype=f64)}, ("past_key", "float", "double")),
        ("type of past_value", PAST, {"past_value": _zeros(2, 2, 4, 7, dtype=f16)}, ("past_value", "float16")),
        ("mask of rank 5", PLAIN, {"attn_mask": _zeros(1, 1, 1, 1, 5)}, ("attn_mask", "5")),
        ("mask too long", PLAIN, {"attn_mask": _zeros(6)}, ("attn_mask", "5", "6")),
        ("mask queries", PLAIN, {"attn_mask": _zeros(2, 5)}, ("attn_mask", "3", "2")),
        ("mask heads", PLAIN, {"attn_mask": _zeros(2, 3, 5)}, ("attn_mask", "4", "2")),
        ("mask batch", PLAIN, {"attn_mask": _zeros(3, 4, 3, 5)}, ("attn_mask", "2", "3")),
        ("nonpad with past", PAST, {"nonpad_kv_seqlen": lengths}, ("nonpad_kv_seqlen", "past")),
        ("rank of nonpad", PLAIN, {"nonpad_kv_seqlen": np.array(5)}, ("nonpad_kv_seqlen", "2")),
        ("length of nonpad", PLAIN, {"nonpad_kv_seqlen": np.array([5, 5, 5])}, ("nonpad_kv_seqlen", "2", "3")),
        ("width of nonpad", PLAIN, {"nonpad_kv_seqlen": np.full((2, 2), 5)}, ("nonpad_kv_seqlen", "2")),
        (
            "type of nonpad",
            PLAIN,
            {"nonpad_kv_seqlen": lengths.astype(np.int32)},
            ("nonpad_kv_seqlen", "int64", "int32"),
        ),
        ("negative nonpad", PLAIN, {"nonpad_kv_seqlen": np.array([5, -1])}, ("nonpad_kv_seqlen", "5", "-1")),
        ("nonpad beyond the keys", PLAIN, {"nonpad_kv_seqlen": np.array([6, 0])}, ("nonpad_kv_seqlen", "5", "6")),
        ("left window", PLAIN, {"left_window_size": -2}, ("left_window_size", "-1", "-2")),
        ("right window", PLAIN, {"right_window_size": -7}, ("right_window_size", "-1", "-7")),
        ("scale NaN", PLAIN, {"scale": NAN}, ("scale", "finite", "nan")),
        ("scale infinite", PLAIN, {"scale": -INF}, ("scale", "finite", "inf")),
        ("softcap NaN", PLAIN, {"softcap": NAN}, ("softcap", "finite", "nan")),
        ("softcap infinite", PLAIN, {"softcap": INF}, ("softcap", "finite", "inf")),
        ("score mode", PLAIN, {"qk_matmul_output_mode": 4}, ("qk_matmul_output_mode", "4")),
        ("negative score mode", PLAIN, {"qk_matmul_output_mode": -1}, ("qk_matmul_output_mode", "-1")),
    ]


def wrong_calls() -> list[WrongCall]:
    """All of them."""
    calls = []
    for name, geometry, changes, words in _table():
        call = make_call(geometry, np.random.default_rng(0))
        for key, value in changes.items():
            part = call.inputs if isinstance(value, np.ndarray) or key in call.inputs else call.attributes
            if value is None:
                del part[key]
            else:
                part[key] = value
        calls.append(WrongCall(name, call, words))
    return calls
