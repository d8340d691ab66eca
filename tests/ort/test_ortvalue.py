"""to_ortvalue and from_ortvalue: arrays of types that numpy lacks, into and out of a session."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper
from support.sessions import IR_VERSION, RUNTIME, make_model, make_session, needs_runtime, run

from onnx_ai_rt import from_ortvalue, to_ortvalue

PLAIN = [np.float32, np.float16, np.float64, np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64]
FOUR_BITS = [ml_dtypes.int4, ml_dtypes.uint4]
TWO_BITS = [ml_dtypes.int2, ml_dtypes.uint2]
EXTRA = [ml_dtypes.bfloat16, *FOUR_BITS]
SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (3, 0, 2), (5, 1)]


def numbers(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Every code of a short type, in turn."""
    info = np.dtype(dtype)
    count = int(np.prod(shape))
    if info.name in ("int4", "uint4", "int2", "uint2"):
        bits = int(info.name[-1])
        low = 0 if info.name.startswith("u") else -(2 ** (bits - 1))
        values = (np.arange(count) % 2**bits + low).astype(np.int8)
    else:
        values = np.arange(count) * 3 % 17
    return np.asarray(values).astype(dtype).reshape(shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [*PLAIN, *EXTRA], ids=lambda d: np.dtype(d).name)
def test_round_trip(dtype: Any, shape: tuple[int, ...]) -> None:
    array = numbers(dtype, shape)
    value = to_ortvalue(array)
    assert list(value.shape()) == list(shape)
    got = from_ortvalue(value)
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert got.tobytes() == array.tobytes()


@needs_runtime(1, 24, "a tensor of 2-bit type")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TWO_BITS, ids=lambda d: np.dtype(d).name)
def test_round_trip_of_2_bits(dtype: Any, shape: tuple[int, ...]) -> None:
    test_round_trip(dtype, shape)


@pytest.mark.skipif(RUNTIME >= (1, 24), reason=f"onnxruntime {ort.__version__} has 2-bit types")
@pytest.mark.parametrize("dtype", TWO_BITS, ids=lambda d: np.dtype(d).name)
def test_2_bits_on_an_older_runtime(dtype: Any) -> None:
    message = rf"to_ortvalue: type {np.dtype(dtype).name} needs onnxruntime 1.24 or later, got {ort.__version__}"
    with pytest.raises(TypeError, match=message):
        to_ortvalue(numbers(dtype, (3,)))


@pytest.mark.parametrize("dtype", [np.float32, *EXTRA], ids=lambda d: np.dtype(d).name)
def test_strided_reversed_and_read_only_arrays(dtype: Any) -> None:
    array = numbers(dtype, (4, 6))
    for view in (array[:, ::2], array[::-1], array.T):
        np.testing.assert_array_equal(from_ortvalue(to_ortvalue(view)), view)
    array.flags.writeable = False
    np.testing.assert_array_equal(from_ortvalue(to_ortvalue(array)), array)


def test_packing() -> None:
    """The first element lies in the low bits."""
    import ctypes

    value = to_ortvalue(np.array([1, -2, 3], ml_dtypes.int4))
    assert ctypes.string_at(value.data_ptr(), 2) == bytes([0xE1, 0x03])


def test_no_copy_of_16_bits() -> None:
    array = numbers(ml_dtypes.bfloat16, (3, 4))
    assert to_ortvalue(array).data_ptr() == array.ctypes.data
    view = to_ortvalue(np.arange(5, dtype=ml_dtypes.bfloat16))  # the value keeps the array alive
    assert from_ortvalue(view).tolist() == [0, 1, 2, 3, 4]


def test_result_is_a_copy() -> None:
    for dtype in (np.float32, ml_dtypes.bfloat16):
        array = numbers(dtype, (4,))
        got = from_ortvalue(to_ortvalue(array))
        got[:] = 9
        assert got.flags.writeable
        assert array[1] == 3


@pytest.mark.parametrize("dtype", [np.float32, *EXTRA], ids=lambda d: np.dtype(d).name)
def test_through_a_session(dtype: Any) -> None:
    array = numbers(dtype, (5, 3))
    inputs = {"x": array}
    if dtype in FOUR_BITS:  # onnxruntime moves them only through the pair of quantization
        inputs |= {"scale": np.array(1, np.float32), "zero": np.array(0, dtype)}
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["float"]),
            helper.make_node("QuantizeLinear", ["float", "scale", "zero"], ["y"]),
        ]
    else:
        nodes = [helper.make_node("Identity", ["x"], ["y"])]
    model = make_model(nodes, {n: (x.dtype, x.shape) for n, x in inputs.items()}, {"y": (dtype, None)}, opset=21)
    got = run(make_session(model), inputs)["y"]
    assert got.dtype == array.dtype
    assert got.tobytes() == array.tobytes()


def test_values_are_inputs_of_run_too() -> None:
    model = make_model(
        [helper.make_node("Cast", ["x"], ["y"], to=1)], {"x": (ml_dtypes.bfloat16, None)}, {"y": (np.float32, None)}
    )
    array = numbers(ml_dtypes.bfloat16, (2, 3))
    got = make_session(model).run(None, {"x": to_ortvalue(array)})[0]
    np.testing.assert_array_equal(got, array.astype(np.float32))


def test_types_that_cannot_be_carried() -> None:
    with pytest.raises(TypeError, match=r"to_ortvalue: onnxruntime .* has no type for complex128"):
        to_ortvalue(np.zeros(3, np.complex128))
    with pytest.raises(TypeError, match="from_ortvalue: expected a tensor"):
        from_ortvalue(_sequence())


def _sequence() -> ort.OrtValue:
    """A value that is no tensor."""
    x = helper.make_tensor_value_info("x", 1, [2])
    y = helper.make_tensor_sequence_value_info("y", 1, None)
    graph = helper.make_graph([helper.make_node("SequenceConstruct", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=IR_VERSION)
    session = make_session(model, library=False)
    return session.run_with_ort_values(["y"], {"x": to_ortvalue(np.zeros(2, np.float32))})[0]
