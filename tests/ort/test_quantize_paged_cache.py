"""ai.rt::QuantizePagedCache in sessions of ONNX Runtime."""

import concurrent.futures

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from cache import golden
from cache.defects import DEFECTS, base, broken
from onnx import TensorProto, helper

import onnx_ai_rt
from onnx_ai_rt.proto import PagedCacheProto
from onnx_ai_rt.reference.paged_cache import parse, validate
from onnx_ai_rt.reference.quantize import FORMATS
from onnx_ai_rt.reference.quantize_paged_cache import quantize_paged_cache

HAS_TWO_BITS = tuple(int(x) for x in onnxruntime.__version__.split(".")[:2]) >= (1, 24)
INPUTS = ("cache", "block_indices", "key_scale", "key_zero_point", "value_scale", "value_zero_point")
NAMES = [n for n, f in FORMATS.items() if f.bits > 2 or HAS_TWO_BITS]


def model(key: str, value: str, scalar_shape=(), cache_shape=("n",)) -> bytes:
    shapes = (cache_shape, ["i"], *[scalar_shape] * 4)
    types = (TensorProto.UINT8, TensorProto.INT64, TensorProto.FLOAT, FORMATS[key].data_type)
    types += (TensorProto.FLOAT, FORMATS[value].data_type)
    infos = [helper.make_tensor_value_info(n, t, s) for n, t, s in zip(INPUTS, types, shapes, strict=True)]
    node = helper.make_node("QuantizePagedCache", INPUTS, ["out"], domain="ai.rt")
    out = helper.make_tensor_value_info("out", TensorProto.UINT8, ["m"])
    return wrap([node], infos, [out])


def wrap(nodes, inputs, outputs, initializers=()) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("ai.rt", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def session(model_bytes: bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    onnx_ai_rt.register(options)
    return onnxruntime.InferenceSession(model_bytes, options, providers=["CPUExecutionProvider"])


def feeds(data: bytes, indices, key_scale, key_zero, value_scale, value_zero) -> dict[str, onnxruntime.OrtValue]:
    arrays = (np.frombuffer(data, np.uint8), np.array(indices, np.int64))
    arrays += (np.float32(key_scale), np.array(key_zero), np.float32(value_scale), np.array(value_zero))
    return {n: onnx_ai_rt.to_ortvalue(a) for n, a in zip(INPUTS, arrays, strict=True)}


def run(s: onnxruntime.InferenceSession, *arguments) -> bytes:
    (out,) = s.run_with_ort_values(["out"], feeds(*arguments))
    return bytes(out.numpy())


@pytest.mark.parametrize("value", NAMES)
@pytest.mark.parametrize("key", NAMES)
def test_every_pair_of_types(key, value):
    data = base().SerializeToString()
    zeros = [np.array(1 if FORMATS[n].is_affine else 0).astype(FORMATS[n].dtype) for n in (key, value)]
    expected = quantize_paged_cache(data, np.array([2, 0, 1]), np.float32(0.5), zeros[0], np.float32(4), zeros[1])
    for threads in (1, 3):
        assert run(session(model(key, value), threads), data, [2, 0, 1], 0.5, zeros[0], 4, zeros[1]) == expected


@pytest.mark.skipif(HAS_TWO_BITS, reason="this onnxruntime knows the 2-bit types")
def test_two_bits_are_refused_where_the_runtime_has_no_such_type():
    with pytest.raises(Exception, match=r"(?i)int2|type"):
        session(model("INT2", "INT2"))


def test_the_run_is_counted():
    onnx_ai_rt.kernel_runs(reset=True)
    run(session(model("INT8", "INT8")), b"", [], 1, np.int8(0), 1, np.int8(0))
    (counted,) = onnx_ai_rt.kernel_runs()
    assert counted.operator == "ai.rt::QuantizePagedCache"


def test_scalars_of_rank_one():
    data = base().SerializeToString()
    s = session(model("INT8", "UINT4", scalar_shape=(1,)))
    got = run(s, data, [0], [0.5], np.int8([3]), [2], np.array([8]).astype(ml_dtypes.uint4))
    assert got == run(session(model("INT8", "UINT4")), data, [0], 0.5, np.int8(3), 2, ml_dtypes.uint4(8))


def failure(s: onnxruntime.InferenceSession, *arguments) -> str:
    with pytest.raises(Exception, match=r"ai\.rt::QuantizePagedCache: ") as error:
        run(s, *arguments)
    return str(error.value)


def test_errors():
    s = session(model("INT8", "INT8"))
    data = base().SerializeToString()
    good = (data, [0], 1, np.int8(0), 1, np.int8(0))
    assert run(s, *good)
    assert "input block_indices: expected each index once, got 0 again" in failure(s, data, [0, 0], *good[2:])
    assert "input block_indices: expected indices of the 3 blocks" in failure(s, data, [3], *good[2:])
    assert "input key_scale: expected a positive and finite number, got 0" in failure(s, data, [0], 0, *good[3:])
    assert "input value_scale: expected a positive" in failure(s, *good[:4], np.nan, np.int8(0))
    assert "at byte 2 of 2" in failure(s, data[:2], [0], *good[2:])
    for defect in DEFECTS[::7]:
        assert "input cache, block" in failure(s, broken(defect).SerializeToString(), [], *good[2:])
    wide = session(model("INT8", "INT8", scalar_shape=(None,)))
    message = failure(wide, data, [0], [1, 2], np.int8([0]), [1], np.int8([0]))
    assert "input key_scale: expected a float scalar, got float of shape (2)" in message
    message = failure(wide, data, [0], [1], np.int8([0]), [1], np.int8([0, 1]))
    assert "input value_zero_point: expected a scalar of int8" in message
    square = session(model("INT8", "INT8", cache_shape=(None, None)))
    values = feeds(*good)
    values["cache"] = onnx_ai_rt.to_ortvalue(np.zeros((1, 2), np.uint8))
    with pytest.raises(Exception, match=r"input cache: expected a tensor of rank 1, got shape \(1,2\)"):
        square.run_with_ort_values(["out"], values)


def test_not_finite_values_leave_no_output():
    cache = base()
    cache.blocks[0].value.raw_data = np.full(48, np.nan, np.float32).tobytes()
    s = session(model("INT8", "INT8"))
    arguments = (cache.SerializeToString(), [1, 0], 1, np.int8(0), 1, np.int8(0))
    assert "block 0, value: expected finite values in the valid rows" in failure(s, *arguments)


def scalar(name: str, value, type_name: str):
    format = FORMATS[type_name]
    return helper.make_tensor(name, format.data_type, (), np.array([value]).astype(format.dtype).tobytes(), raw=True)


def example_model() -> bytes:
    """Quantizes block 1, then restores it; both caches are outputs."""
    initializers = [
        helper.make_tensor("indices", TensorProto.INT64, (1,), [1]),
        *(scalar(f"scale_{s}", s, "FLOAT") for s in (0.25, 0.125, 1)),
        helper.make_tensor("int4_0", TensorProto.INT4, (), b"\0", raw=True),
        helper.make_tensor("uint4_8", TensorProto.UINT4, (), b"\x08", raw=True),
        scalar("half", 0, "FLOAT16"),
        scalar("bfloat", 0, "BFLOAT16"),
    ]
    quantize = ["cache", "indices", "scale_0.25", "int4_0", "scale_0.125", "uint4_8"]
    restore = ["quantized", "indices", "scale_1", "half", "scale_1", "bfloat"]
    nodes = [
        helper.make_node("QuantizePagedCache", quantize, ["quantized"], domain="ai.rt"),
        helper.make_node("QuantizePagedCache", restore, ["restored"], domain="ai.rt"),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.UINT8, [n]) for n in ("cache", "quantized", "restored")]
    return wrap(nodes, infos[:1], infos[1:], initializers)


def test_worked_example():
    original, quantized, restored = (
        (golden.FOLDER / f"example_{n}.pb").read_bytes() for n in ("original", "quantized", "restored")
    )
    s = session(example_model())
    for data in (original, quantized):  # the second time the output is fed back
        got = [bytes(x) for x in s.run(None, {"cache": np.frombuffer(data, np.uint8)})]
        assert got == [quantized, restored]
    before, after = PagedCacheProto.FromString(original), PagedCacheProto.FromString(quantized)
    assert after.blocks[0].SerializeToString() == before.blocks[0].SerializeToString()
    assert [len(p.raw_data) for p in (after.blocks[1].encoded_key, after.blocks[1].encoded_value)] == [4, 4]
    block = validate(parse(restored))[1]
    assert block.key.decode().ravel().tolist() == [-1.25, -0.5, 0.25, 1.25]
    assert block.value.decode().ravel().tolist() == [-0.75, -0.25, 0.25, 0.75]
    assert block.key.message.raw_data[8:] == block.value.message.raw_data[8:] == bytes(8)


def test_many_threads_on_one_session():
    data = base().SerializeToString()
    s = session(model("INT4", "UINT8"), threads=2)
    zeros = ml_dtypes.int4(1), np.uint8(3)
    expected = [
        quantize_paged_cache(data, np.array(i), np.float32(0.5), zeros[0], np.float32(2), zeros[1])
        for i in ([0], [1], [2], [0, 2])
    ]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(run, s, data, i, 0.5, zeros[0], 2, zeros[1]) for i in ([0], [1], [2], [0, 2]) * 25]
        assert [job.result() for job in jobs] == expected * 25


def test_unaligned_and_read_only_views():
    data = base().SerializeToString()
    s = session(model("INT8", "INT8"))
    expected = run(s, data, [0], 1, np.int8(0), 1, np.int8(0))
    for shift in range(1, 9):
        buffer = np.empty(len(data) + shift, np.uint8)
        buffer[shift:] = np.frombuffer(data, np.uint8)
        buffer.flags.writeable = False
        values = feeds(b"", [0], 1, np.int8(0), 1, np.int8(0))
        values["cache"] = onnxruntime.OrtValue.ortvalue_from_numpy(buffer[shift:])
        assert bytes(s.run_with_ort_values(["out"], values)[0].numpy()) == expected
