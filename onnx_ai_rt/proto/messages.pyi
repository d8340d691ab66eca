"""Types of the message classes, which exist at run time only. Enum values are ints, as in protobuf."""

from collections.abc import Iterable
from typing import Any, Literal

import onnx
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.message import Message

class StructTypeProto(Message):
    def __init__(self) -> None: ...

class AffineLayoutProto(Message):
    storage_type: int
    axis: int
    block_size: int
    signed_storage: bool
    @property
    def scale(self) -> onnx.TensorProto: ...
    @property
    def zero_point(self) -> onnx.TensorProto: ...
    def __init__(
        self,
        *,
        storage_type: int | str | None = ...,
        scale: onnx.TensorProto | dict[str, Any] | None = ...,
        zero_point: onnx.TensorProto | dict[str, Any] | None = ...,
        axis: int | None = ...,
        block_size: int | None = ...,
        signed_storage: bool | None = ...,
    ) -> None: ...

class EncodedValueProto(Message):
    raw_data: bytes
    data_location: int
    name: str
    doc_string: str
    parameter_ref: str
    @property
    def affine(self) -> AffineLayoutProto: ...
    @property
    def struct_type(self) -> StructTypeProto: ...
    @property
    def logical_type(self) -> onnx.TypeProto: ...
    @property
    def external_data(self) -> RepeatedCompositeFieldContainer[onnx.StringStringEntryProto]: ...
    def __init__(
        self,
        *,
        affine: AffineLayoutProto | dict[str, Any] | None = ...,
        struct_type: StructTypeProto | dict[str, Any] | None = ...,
        logical_type: onnx.TypeProto | dict[str, Any] | None = ...,
        raw_data: bytes | None = ...,
        external_data: Iterable[onnx.StringStringEntryProto | dict[str, Any]] | None = ...,
        data_location: int | str | None = ...,
        name: str | None = ...,
        doc_string: str | None = ...,
        parameter_ref: str | None = ...,
    ) -> None: ...
    def WhichOneof(self, oneof_group: Literal["layout"]) -> Literal["affine", "struct_type"] | None: ...

class PagedCacheBlockProto(Message):
    start: int
    length: int
    @property
    def key(self) -> onnx.TensorProto: ...
    @property
    def encoded_key(self) -> EncodedValueProto: ...
    @property
    def value(self) -> onnx.TensorProto: ...
    @property
    def encoded_value(self) -> EncodedValueProto: ...
    def __init__(
        self,
        *,
        start: int | None = ...,
        length: int | None = ...,
        key: onnx.TensorProto | dict[str, Any] | None = ...,
        encoded_key: EncodedValueProto | dict[str, Any] | None = ...,
        value: onnx.TensorProto | dict[str, Any] | None = ...,
        encoded_value: EncodedValueProto | dict[str, Any] | None = ...,
    ) -> None: ...
    def WhichOneof(
        self, oneof_group: Literal["key_payload", "value_payload"]
    ) -> Literal["key", "encoded_key", "value", "encoded_value"] | None: ...

class PagedCacheProto(Message):
    name: str
    doc_string: str
    @property
    def blocks(self) -> RepeatedCompositeFieldContainer[PagedCacheBlockProto]: ...
    def __init__(
        self,
        *,
        blocks: Iterable[PagedCacheBlockProto | dict[str, Any]] | None = ...,
        name: str | None = ...,
        doc_string: str | None = ...,
    ) -> None: ...
