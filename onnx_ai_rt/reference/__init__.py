"""The operators in plain numpy: the judge of the kernels, and `OpRun` classes for onnx's ReferenceEvaluator."""

from onnx_ai_rt.reference.attention import attention
from onnx_ai_rt.reference.ops import reference_ops

__all__ = ["attention", "reference_ops"]
