"""ai.rt::PagedAttention and ai.rt::PagedCacheLength in plain numpy: decode the cache, attend, write the new blocks."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from onnx import TensorProto

from onnx_ai_rt.proto import PagedCacheBlockProto, PagedCacheProto
from onnx_ai_rt.reference.attention import attention
from onnx_ai_rt.reference.attention_layout import shape_text, type_name
from onnx_ai_rt.reference.paged_cache import Block, CacheError, parse, validate
from onnx_ai_rt.reference.quantize import Array, Format, find_format
from onnx_ai_rt.reference.quantize_paged_cache import Target, cache_bytes, encode, read_target

_OPERATOR = "ai.rt::PagedAttention"
_LENGTH_OPERATOR = "ai.rt::PagedCacheLength"
_INT64_MAX = (1 << 63) - 1


def paged_attention(
    Q: Array,
    K: Array,
    V: Array,
    past: bytes | Array,
    key_scale: Array | None = None,
    key_zero_point: Array | None = None,
    value_scale: Array | None = None,
    value_zero_point: Array | None = None,
    *,
    block_size: int = 16,
    max_tokens: int = 0,
    is_causal: int = 1,
    left_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    rounded: bool = True,
) -> tuple[Array, bytes, bytes]:
    """Attention over the pages of a cache and new tokens behind them.

    Args:
        Q: ``(B,Hq,S,D)`` of float, float16 or bfloat16 (``ml_dtypes``), S >= 1.
        K: ``(B,Hkv,S,D)`` of Q's type, finite.
        V: ``(B,Hkv,S,Dv)`` of Q's type, finite.
        past: a serialized ``PagedCacheProto``, bytes or rank-1 uint8; 0 bytes are the empty cache.
        key_scale: float32 scalar, positive and finite, together with `key_zero_point`.
        key_zero_point: scalar whose type is the format of the new keys; without both it is K's type.
        value_scale: the same for the values.
        value_zero_point: the same for the values.
        block_size: the most tokens of a new block.
        max_tokens: if positive, the most tokens of past and new ones.
        is_causal: not 0: a query row sees no key behind its own position.
        left_window_size: >= 0: keys further than this before the row's position are hidden.
        scale: any finite float; 1/sqrt(D) when None.
        softcap: > 0: scores become softcap * tanh(score / softcap).
        rounded: False returns Y as the doubles that were computed.

    Returns:
        Y ``(B,Hq,S,Dv)`` in Q's type, the bytes of `past` and the new blocks, the bytes of the new blocks alone.

    Raises:
        ValueError: one sentence naming operator, input, expected and got; CacheError is one.
    """
    _check_new_tokens(Q, K, V)
    if block_size < 1:
        _fail("attribute block_size", "1 or more", str(block_size))
    key = _optional_target("key", key_scale, key_zero_point, K)
    value = _optional_target("value", value_scale, value_zero_point, V)
    data = cache_bytes(_OPERATOR, "past", past)
    blocks = validate(parse(data, f"{_OPERATOR}: input past"), f"{_OPERATOR}: input past")
    tokens, new_tokens = sum(block.length for block in blocks), K.shape[2]
    if tokens + new_tokens > (max_tokens if max_tokens > 0 else _INT64_MAX):
        limit = max_tokens if max_tokens > 0 else _INT64_MAX
        _fail("inputs past and K", f"at most max_tokens {limit} tokens", f"{tokens} past and {new_tokens} new ones")
    if blocks:
        _check_fits(blocks[0], K, V)
    for name, x in (("K", K), ("V", V)):
        _check_finite(name, x)
    output = attention(
        Q.astype(np.float64),
        K.astype(np.float64),
        V.astype(np.float64),
        past_key=_decode(blocks, "key", K),
        past_value=_decode(blocks, "value", V),
        scale=scale,
        is_causal=is_causal,
        softcap=softcap,
        left_window_size=left_window_size,
        op_name=_OPERATOR,
    )[0]
    appended = _new_blocks(K, V, key, value, tokens, block_size)
    with np.errstate(over="ignore"):
        return output.astype(Q.dtype) if rounded else output, data + appended, appended


def paged_cache_length(cache: bytes | Array) -> int:
    """The number of tokens of a serialized cache; 0 for the empty one. Raises CacheError for one that is not valid."""
    place = f"{_LENGTH_OPERATOR}: input cache"
    return sum(block.length for block in validate(parse(cache_bytes(_LENGTH_OPERATOR, "cache", cache), place), place))


def _fail(what: str, expected: str, got: str) -> NoReturn:
    raise CacheError(f"{_OPERATOR}: {what}: expected {expected}, got {got}")


def _check_new_tokens(q: Array, k: Array, v: Array) -> None:
    """Types and shapes that Attention does not look at, as they are the past's too."""
    for name, x in (("Q", q), ("K", k), ("V", v)):
        format = find_format(x.dtype)
        if format is None or format.is_affine:
            _fail(f"type of input {name}", "float, float16 or bfloat16", type_name(x.dtype))
        if x.dtype != q.dtype:
            _fail(f"type of input {name}", f"{type_name(q.dtype)} like Q", type_name(x.dtype))
        if x.ndim != 4:
            _fail(f"input {name}", "rank 4", f"shape {shape_text(x.shape)}")
    if q.shape[2] < 1:
        _fail("input Q", "at least one token", f"shape {shape_text(q.shape)}")
    for name, x in (("K", k), ("V", v)):
        if x.shape[2] != q.shape[2]:
            _fail(f"input {name}", f"the {q.shape[2]} tokens of Q", f"shape {shape_text(x.shape)}")


def _check_finite(name: str, x: Array) -> None:
    finite = np.isfinite(x.astype(np.float64))
    if not finite.all():
        where = tuple(int(i) for i in np.argwhere(~finite)[0])
        _fail(f"input {name}", "finite values", f"{x[where]} at {shape_text(where)}")


def _check_fits(block: Block, k: Array, v: Array) -> None:
    """The past's batch, heads and widths; all its blocks have the same."""
    for name, x, payload in (("K", k, block.key), ("V", v, block.value)):
        for axis, what in ((0, "batch"), (1, "heads"), (3, "width")):
            if x.shape[axis] != payload.shape[axis]:
                expected = f"the {what} of the past, {payload.shape[axis]}"
                _fail(f"input {name}", expected, f"shape {shape_text(x.shape)}")


def _optional_target(side: str, scale: Array | None, zero_point: Array | None, new: Array) -> Target:
    """The format of the new keys or values: both inputs name it, or neither does."""
    if scale is None and zero_point is None:
        format = find_format(new.dtype)
        assert format is not None
        return format, 1.0, 0
    if scale is None or zero_point is None:
        given, missing = ("zero_point", "scale") if scale is None else ("scale", "zero_point")
        _fail(f"input {side}_{missing}", f"a scalar, as {side}_{given} is given", "none")
    return read_target(_OPERATOR, side, scale, zero_point)


def _decode(blocks: list[Block], side: str, new: Array) -> Array:
    """The past keys or values in double, (B,Hkv,L,width); NaN and infinity in them follow IEEE."""
    batch, heads, _, width = new.shape
    empty = np.zeros((batch, heads, 0, width))
    return np.concatenate([empty, *(getattr(block, side).decode_any().astype(np.float64) for block in blocks)], axis=2)


def _new_blocks(k: Array, v: Array, key: Target, value: Target, start: int, block_size: int) -> bytes:
    """Serialized blocks of at most `block_size` tokens; capacity is the length."""
    cache = PagedCacheProto()
    for begin in range(0, k.shape[2], block_size):
        rows = slice(begin, begin + block_size)
        block = PagedCacheBlockProto(start=start + begin, length=k[:, :, rows].shape[2])
        for side, name, x, target in (("key", "K", k, key), ("value", "V", v, value)):
            message = encode(x[:, :, rows].astype(np.float32), block.length, *target, place=_place(name, target[0]))
            getattr(block, side if isinstance(message, TensorProto) else f"encoded_{side}").CopyFrom(message)
        cache.blocks.append(block)
    return cache.SerializeToString()


def _place(name: str, format: Format) -> str:
    return f"{_OPERATOR}: input {name} as {format.name}"
