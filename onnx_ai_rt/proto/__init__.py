"""The messages of the paged cache: see ``paged_cache.proto``, the one definition of the format."""

from onnx_ai_rt.proto.messages import (
    AffineLayoutProto,
    EncodedValueProto,
    PagedCacheBlockProto,
    PagedCacheProto,
    StructTypeProto,
)

__all__ = ["AffineLayoutProto", "EncodedValueProto", "PagedCacheBlockProto", "PagedCacheProto", "StructTypeProto"]
