"""The operators in plain numpy: the judge of the kernels, and `OpRun` classes for onnx's ReferenceEvaluator."""

from onnx_ai_rt.reference.attention import attention

__all__ = ["attention"]
