"""ai.rt::PagedAttention and PagedCacheLength for the ReferenceEvaluator, over the reference of Attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx_ai_rt.proto import PagedCacheBlockProto, PagedCacheProto
from onnx_ai_rt.reference.attention import attention
from onnx_ai_rt.reference.ops import OptionalsOpRun
from onnx_ai_rt.reference.paged_cache import parse, validate
from onnx_ai_rt.reference.quantize import find_format
from onnx_ai_rt.reference.quantize_paged_cache import encode


class PagedCacheLength(OptionalsOpRun):
    op_domain = "ai.rt"

    def _run(self, cache: np.ndarray, **_: Any) -> tuple[np.ndarray]:
        return (np.array(sum(b.length for b in validate(parse(cache))), np.int64),)


class PagedAttention(OptionalsOpRun):
    op_domain = "ai.rt"

    def _run(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, past: np.ndarray, *parameters: Any, **attributes: Any
    ) -> tuple[np.ndarray, ...]:
        blocks = validate(parse(past))
        tokens = sum(block.length for block in blocks)
        block_size, max_tokens = attributes.pop("block_size", None) or 16, attributes.pop("max_tokens", None) or 0
        assert max_tokens == 0 or tokens + k.shape[2] <= max_tokens
        past_key, past_value = k[:, :, :0], v[:, :, :0]
        if blocks:
            past_key = np.concatenate([b.key.decode() for b in blocks], axis=2)
            past_value = np.concatenate([b.value.decode() for b in blocks], axis=2)
        causal = attributes.pop("is_causal", 1)
        if attributes.get("left_window_size") is None:
            attributes["left_window_size"] = -1
        given = {name: value for name, value in attributes.items() if value is not None}
        query, key, value, past_key, past_value = (x.astype(np.float64) for x in (q, k, v, past_key, past_value))
        y = attention(query, key, value, None, past_key, past_value, is_causal=causal, **given)[0].astype(q.dtype)
        given = [*parameters, *[None] * 4][:4]
        appended = PagedCacheProto()
        for begin in range(0, k.shape[2], block_size):
            part = slice(begin, begin + block_size)
            block = PagedCacheBlockProto(start=tokens + begin, length=k[:, :, part].shape[2])
            for side, rows, scale, zero in (("key", k, *given[:2]), ("value", v, *given[2:])):
                chosen = find_format(rows.dtype if zero is None else zero.dtype)
                assert chosen is not None
                scaled = (1.0, 0) if scale is None or not chosen.is_affine else (float(scale), int(zero))
                message = encode(rows[:, :, part].astype(np.float32), block.length, chosen, *scaled)
                getattr(block, side if message.DESCRIPTOR.name == "TensorProto" else f"encoded_{side}").CopyFrom(
                    message
                )
            appended.blocks.append(block)
        new = np.frombuffer(appended.SerializeToString(), np.uint8)
        return y, np.concatenate([past, new]), new


paged_ops = [PagedAttention, PagedCacheLength]
