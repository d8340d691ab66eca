"""The operators for onnx's ReferenceEvaluator, in plain numpy.

ReferenceEvaluator(model, new_ops=onnx_ai_rt.reference_ops).run(None, inputs)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from onnx_ai_rt.reference.attention import attention
from onnx_ai_rt.reference.paged import paged_attention, paged_cache_length
from onnx_ai_rt.reference.quantize_paged_cache import QuantizePagedCache


class OptionalsOpRun(OpRun):
    """An operator with optional inputs and outputs.

    ReferenceEvaluator keeps every omitted output under the name "", where a later node finds it as the value of an
    omitted input. This class neither leaves such values nor takes them.
    """

    def run(self, *args: Any, **options: Any) -> tuple[np.ndarray | None, ...]:
        given = (value if name else None for name, value in zip(self.onnx_node.input, args, strict=True))
        results = super().run(*given, **options)  # type: ignore[no-untyped-call]
        return tuple(value if name else None for name, value in zip(self.onnx_node.output, results, strict=False))


class Attention(OptionalsOpRun):
    """ai.rt::Attention: see `onnx_ai_rt.reference.attention`."""

    op_domain = "ai.rt"

    def _run(self, *inputs: np.ndarray | None, **attributes: Any) -> tuple[np.ndarray, ...]:
        return attention(*inputs, **attributes, op_name=self.label)  # type: ignore[arg-type]

    @property
    def label(self) -> str:
        """The operator's name in messages."""
        return f"{self.op_domain}::Attention" if self.op_domain else "Attention"


# Attention of domain "", as registering the library overrides it in a session.
OnnxAttention = type("Attention", (Attention,), {"op_domain": "", "__doc__": "Attention of ONNX by the same rules."})


class PagedAttention(OptionalsOpRun):
    """ai.rt::PagedAttention: see `onnx_ai_rt.reference.paged_attention`; caches as uint8 arrays in and out."""

    op_domain = "ai.rt"

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[np.ndarray, ...]:
        output, present, appended = paged_attention(*inputs, **attributes)
        return output, np.frombuffer(present, np.uint8), np.frombuffer(appended, np.uint8)


class PagedCacheLength(OpRun):
    """ai.rt::PagedCacheLength: the number of tokens of a cache, an int64 scalar."""

    op_domain = "ai.rt"

    def _run(self, cache: np.ndarray) -> tuple[np.ndarray]:
        return (np.array(paged_cache_length(cache), np.int64),)


#: For ``ReferenceEvaluator(model, new_ops=reference_ops)``: the `ai.rt` operators, and ONNX's Attention by their rules.
reference_ops: list[type[OpRun]] = [Attention, OnnxAttention, QuantizePagedCache, PagedAttention, PagedCacheLength]
