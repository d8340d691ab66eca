"""The message classes are protobuf's own, over onnx's, and mean what protoc reads in the .proto file."""

import copy
import importlib.resources
import importlib.util
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import onnx
import pytest
from google.protobuf import descriptor_pb2, text_format

from onnx_ai_rt.proto import (
    AffineLayoutProto,
    EncodedValueProto,
    PagedCacheBlockProto,
    PagedCacheProto,
    StructTypeProto,
)
from onnx_ai_rt.proto.descriptor import ProtoSyntaxError, parse_proto

ALL = (PagedCacheProto, PagedCacheBlockProto, EncodedValueProto, AffineLayoutProto, StructTypeProto)
PROTO = importlib.resources.files("onnx_ai_rt.proto").joinpath("paged_cache.proto")


def example() -> PagedCacheProto:
    cache = PagedCacheProto(name="layer 0")
    block = cache.blocks.add(start=0, length=2)
    block.key.CopyFrom(onnx.numpy_helper.from_array(np.ones((1, 1, 2, 4), np.float32), "k"))
    block.encoded_value.affine.storage_type = onnx.TensorProto.INT4
    block.encoded_value.logical_type.CopyFrom(onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [1, 1, 2, 4]))
    return cache


def test_payloads_are_onnx_messages():
    block = example().blocks[0]
    assert type(block.key) is onnx.TensorProto
    assert type(block.encoded_value.logical_type) is onnx.TypeProto
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(block.key), np.ones((1, 1, 2, 4)))


def test_presence_and_oneofs():
    block = example().blocks[0]
    assert block.HasField("start")
    assert not PagedCacheBlockProto().HasField("start")
    assert block.WhichOneof("key_payload") == "key"
    block.encoded_key.raw_data = b"\1"
    assert block.WhichOneof("key_payload") == "encoded_key"
    assert not block.HasField("key")
    assert PagedCacheBlockProto().WhichOneof("value_payload") is None


def test_copies():
    cache = example()
    assert PagedCacheProto.FromString(cache.SerializeToString()) == cache
    assert text_format.Parse(text_format.MessageToString(cache), PagedCacheProto()) == cache
    assert copy.deepcopy(cache) == cache
    assert pickle.loads(pickle.dumps(cache)) == cache


def test_bytes_concatenate():
    first, second = example(), PagedCacheProto(doc_string="more")
    second.blocks.add(start=2, length=1)
    both = PagedCacheProto.FromString(first.SerializeToString() + second.SerializeToString())
    assert [b.start for b in both.blocks] == [0, 2]
    assert (both.name, both.doc_string) == ("layer 0", "more")


def test_unknown_fields_stay():
    wire = b"\x08\x01" + b"\xfa\x07\x03abc"
    assert PagedCacheBlockProto.FromString(wire).SerializeToString() == wire
    assert StructTypeProto.FromString(wire).SerializeToString() == wire


def test_same_descriptor_as_protoc(tmp_path):
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed")
    onnx_proto = tmp_path / "onnx" / "onnx-ml.proto"
    onnx_proto.parent.mkdir()
    text = pathlib.Path(onnx.__file__).with_name("onnx-ml.proto").read_text()
    onnx_proto.write_text(text.replace("option optimize_for = LITE_RUNTIME;", ""))  # protoc: lite is for lite alone
    source = tmp_path / "onnx_ai_rt" / "proto" / "paged_cache.proto"
    source.parent.mkdir(parents=True)
    source.write_bytes(PROTO.read_bytes())
    output = tmp_path / "set"
    # In a process of its own: after protoc has run in one, importing onnxruntime_extensions there crashes.
    protoc = [sys.executable, "-m", "grpc_tools.protoc"]
    subprocess.run([*protoc, f"-I{tmp_path}", f"--descriptor_set_out={output}", str(source)], check=True)
    (by_protoc,) = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file
    by_protoc.ClearField("syntax")  # proto2 may be named or not
    ours = descriptor_pb2.FileDescriptorProto.FromString(PagedCacheProto.DESCRIPTOR.file.serialized_pb)
    by_protoc.dependency[:] = ours.dependency
    for file in (by_protoc, ours):
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert ours == by_protoc


def test_every_class_is_exported():
    assert {m.name for m in parse_proto(PROTO.read_text(), "x").message_type} == {c.DESCRIPTOR.name for c in ALL}


HEAD = 'syntax = "proto2"; package p; '


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('syntax = "proto3";', "line 1: expected '\"proto2\"', got '\"proto3\"'"),
        (HEAD + "enum E { A = 0; }", "line 1: expected 'message', got 'enum'"),
        (HEAD + "message M { required int64 a = 1; }", "expected 'optional' or 'repeated' or 'oneof', got 'required'"),
        (HEAD + "message M { optional int64 a = 1; optional int64 b = 1; }", "field b has the number 1 of another one"),
        (HEAD + "message M { optional int64 a = 0; }", "expected the number of field a, got '0'"),
        (HEAD + "message M { optional int64 a = 1 }", "expected ';', got '}'"),
        (HEAD + "message M {\n", "line 2: expected 'optional' or 'repeated' or 'oneof', got 'the end of the file'"),
        (HEAD + "message M { optional a. b = 1; }", "expected a type before b, got 'a.'"),
        (HEAD + "message 7 { }", "expected a name, got '7'"),
        (HEAD + "\n\nmessage M { optional int64 a = 1 [default = 3]; }", "line 3: unexpected character '['"),
    ],
)
def test_parser_refuses(text, message):
    with pytest.raises(ProtoSyntaxError) as error:
        parse_proto(text, "x.proto")
    assert message in str(error.value)
