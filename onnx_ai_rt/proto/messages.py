"""The message classes of the paged cache, over onnx's own ``TensorProto`` and ``TypeProto``.

They live in the descriptor pool that onnx uses, so that ``block.key.CopyFrom(onnx.numpy_helper.from_array(x))``
works, and they are protobuf's own classes in every respect: presence, ``WhichOneof``, unknown fields, text format,
pickling. Python's protobuf parses no message of 2 GiB or more.
"""

from __future__ import annotations

import importlib.resources
from typing import Any

import onnx
from google.protobuf import message_factory

from onnx_ai_rt.proto.descriptor import parse_proto, resolve_types

_FILE_NAME = "onnx_ai_rt/proto/paged_cache.proto"
_ONNX_IMPORT = "onnx/onnx-ml.proto"


def _add_file() -> Any:
    """Adds the ``.proto`` file to onnx's descriptor pool and returns its descriptor."""
    onnx_file = onnx.TensorProto.DESCRIPTOR.file
    text = importlib.resources.files(__package__).joinpath("paged_cache.proto").read_text(encoding="utf-8")
    file = parse_proto(text, _FILE_NAME)
    # onnx may be built from onnx.proto: the dependency is the file that its classes really come from.
    file.dependency[:] = [onnx_file.name if name == _ONNX_IMPORT else name for name in file.dependency]
    resolve_types(file, onnx_file.pool)
    onnx_file.pool.AddSerializedFile(file.SerializeToString())
    return onnx_file.pool.FindFileByName(_FILE_NAME)


def _message_class(descriptor: Any) -> Any:
    if hasattr(message_factory, "GetMessageClass"):  # protobuf >= 4.22
        cls = message_factory.GetMessageClass(descriptor)
    else:
        cls = message_factory.MessageFactory(descriptor.file.pool).GetPrototype(descriptor)
    cls.__module__ = __name__  # pickle looks the class up here
    return cls


_messages = _add_file().message_types_by_name

PagedCacheProto = _message_class(_messages["PagedCacheProto"])
PagedCacheBlockProto = _message_class(_messages["PagedCacheBlockProto"])
EncodedValueProto = _message_class(_messages["EncodedValueProto"])
AffineLayoutProto = _message_class(_messages["AffineLayoutProto"])
StructTypeProto = _message_class(_messages["StructTypeProto"])
