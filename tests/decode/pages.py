"""Pages as the operator appends them."""

from __future__ import annotations

import numpy as np

from onnx_ai_rt import PagedCache

BATCH, HEADS, KEY_WIDTH, VALUE_WIDTH = 2, 2, 5, 3


def tokens(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of random tokens."""
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=(BATCH, HEADS, count, width)).astype(np.float32) for width in (KEY_WIDTH, VALUE_WIDTH))


def appended(
    start: int, key: np.ndarray, value: np.ndarray, page_size: int = 16, formats: tuple[str, str] = ("FLOAT", "FLOAT")
) -> np.ndarray:
    """The serialized pages of these tokens, the first of which is token `start`. Affine formats have the scale 0.05."""
    cache = PagedCache.from_dense(key, value, page_size)
    if formats != ("FLOAT", "FLOAT"):
        cache = cache.quantize(*formats, key_scale=0.05, value_scale=0.05)
    message = cache.to_proto()
    for block in message.blocks:
        block.start += start
    return np.frombuffer(message.SerializeToString(), np.uint8)
