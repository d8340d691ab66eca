"""The operators in plain numpy: the judge of the kernels, and `OpRun` classes for onnx's ReferenceEvaluator."""

from onnx_ai_rt.reference.attention import attention
from onnx_ai_rt.reference.ops import reference_ops
from onnx_ai_rt.reference.paged import paged_attention, paged_cache_length

__all__ = ["attention", "paged_attention", "paged_cache_length", "reference_ops"]
