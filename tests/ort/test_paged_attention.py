"""ai.rt::PagedAttention and ai.rt::PagedCacheLength in sessions of ONNX Runtime."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from support.paged_calls import NORMAL, TYPES, Heads, PagedCall, Target, check_outputs, check_y, make_cache, make_call
from support.sessions import make_model, make_session, needs_runtime, run

import onnx_ai_rt
from onnx_ai_rt.reference.quantize import FORMATS

INPUTS = ("Q", "K", "V", "past", "key_scale", "key_zero_point", "value_scale", "value_zero_point")
OUTPUTS = ("Y", "present", "appended")
HEADS = Heads(B=2, Hq=4, Hkv=2, D=16, Dv=10)
MIXED = ["FLOAT", "INT8", "UINT4", "BFLOAT16"]
TWO_BITS = needs_runtime(1, 24, "declaring 2-bit types")
NAMES = [pytest.param(n, marks=TWO_BITS) if f.bits == 2 else n for n, f in FORMATS.items()]


def scalars(side: str, target: Target | None) -> dict[str, np.ndarray]:
    if target is None:
        return {}
    name, scale, zero_point = target
    zero = np.array(zero_point).astype(FORMATS[name].dtype)
    return {f"{side}_scale": np.array(scale, np.float32), f"{side}_zero_point": zero}


def feeds(call: PagedCall) -> dict[str, np.ndarray]:
    past = np.frombuffer(call.past, np.uint8)
    new = {"Q": call.q, "K": call.k, "V": call.v, "past": past}
    return new | scalars("key", call.key) | scalars("value", call.value)


def node(inputs: Iterable[str], outputs: Iterable[str], **attributes: Any) -> onnx.NodeProto:
    """In the operator's order; what is left out in the middle has an empty name."""
    given, wanted = set(inputs), set(outputs)
    names = [[n if n in chosen else "" for n in order] for chosen, order in ((given, INPUTS), (wanted, OUTPUTS))]
    for values in names:
        while not values[-1]:
            values.pop()
    return helper.make_node("PagedAttention", *names, domain="ai.rt", name="paged", **attributes)


def model(call: PagedCall, outputs: Sequence[str] = OUTPUTS) -> onnx.ModelProto:
    given = feeds(call)
    types = {"Y": call.q.dtype, "present": np.uint8, "appended": np.uint8}
    return make_model(
        [node(given, outputs, **call.attributes)],
        {name: (x.dtype, [None] * x.ndim) for name, x in given.items()},
        {name: (types[name], None) for name in outputs},
    )


def run_call(call: PagedCall, outputs: Sequence[str] = OUTPUTS, **settings: Any) -> dict[str, np.ndarray]:
    return run(make_session(model(call, outputs), **settings), feeds(call))


def check(call: PagedCall, **settings: Any) -> None:
    check_outputs(call, run_call(call, **settings))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("value", [None, *NAMES])
@pytest.mark.parametrize("key", [None, *NAMES])
def test_every_variant(key, value, dtype):
    """Nine formats for each side, or none, times three types: 300 signatures."""
    rng = np.random.default_rng(0)
    past = make_cache(rng, HEADS, [9, 9, 9], MIXED, MIXED[::-1], spare=2)
    check(make_call(rng, HEADS, past, 2, dtype, key=key and NORMAL[key], value=value and NORMAL[value]), threads=1)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "attributes",
    [{}, {"block_size": 5, "is_causal": 0}, {"left_window_size": 20, "softcap": 3.0, "scale": 0.3, "max_tokens": 99}],
    ids=str,
)
def test_attributes(attributes, threads):
    rng = np.random.default_rng(1)
    past = make_cache(rng, HEADS, [16, 16, 16, 16, 3], MIXED, MIXED)
    for s in (1, 30):
        check(make_call(rng, HEADS, past, s, **attributes), threads=threads)


def test_threads_give_the_same_bits():
    rng = np.random.default_rng(2)
    heads = Heads(B=1, Hq=4, Hkv=2, D=64, Dv=64)
    call = make_call(rng, heads, make_cache(rng, heads, [64] * 32, MIXED, MIXED), 1)
    one, many = (run_call(call, threads=threads)["Y"] for threads in (1, 4))
    np.testing.assert_array_equal(one, many)
    np.testing.assert_array_equal(one, call.run()["Y"])


@pytest.mark.parametrize("outputs", [("Y",), ("Y", "present"), ("Y", "appended"), OUTPUTS], ids="-".join)
def test_outputs_that_a_node_leaves_out(outputs):
    rng = np.random.default_rng(3)
    call = make_call(rng, HEADS, make_cache(rng, HEADS, [4], MIXED, MIXED), 2, value=NORMAL["INT4"])
    got = run_call(call, outputs)
    assert set(got) == set(outputs)
    expected = call.run("present", "appended")
    for name, x in got.items():
        np.testing.assert_array_equal(x, expected[name])


def test_the_empty_cache_and_unaligned_views():
    rng = np.random.default_rng(4)
    check(make_call(rng, HEADS, b"", 3))
    call = make_call(rng, HEADS, make_cache(rng, HEADS, [5, 5], ["FLOAT16", "INT8"], ["FLOAT"]), 1)
    session = make_session(model(call))
    expected = run(session, feeds(call))
    for shift in range(1, 9):
        buffer = np.empty(len(call.past) + shift, np.uint8)
        buffer[shift:] = np.frombuffer(call.past, np.uint8)
        buffer.flags.writeable = False
        got = run(session, feeds(call) | {"past": buffer[shift:]})
        for name, x in expected.items():
            np.testing.assert_array_equal(got[name], x)


@pytest.mark.parametrize("form", ["present", "appended"])
def test_a_decode_loop(form):
    """The output is fed back, or put behind what the caller keeps; the tokens are those of one long call."""
    rng = np.random.default_rng(5)
    whole = make_call(rng, HEADS, b"", 30, key=NORMAL["FLOAT16"], value=NORMAL["FLOAT"], block_size=4)
    rows, past, session = [], b"", None
    for begin, end in ((0, 10), *((t, t + 1) for t in range(10, 30))):
        tokens = [np.ascontiguousarray(x[:, :, begin:end]) for x in (whole.q, whole.k, whole.v)]
        call = PagedCall(HEADS, past, *tokens, whole.attributes, whole.key, whole.value)
        session = session or make_session(model(call, ("Y", form)))
        got = run(session, feeds(call))
        rows.append(got["Y"])
        past = bytes(got[form]) if form == "present" else past + bytes(got[form])
    whole.k = whole.k.astype(np.float16).astype(np.float32)  # as the pages hold them
    np.testing.assert_allclose(np.concatenate(rows, axis=2), whole.oracle()[0], rtol=2e-3, atol=2e-3)
    assert run(length_session(), {"cache": np.frombuffer(past, np.uint8)})["length"] == 30


def test_two_layers_in_one_graph():
    """Each has a cache of its own; the second one's queries come from the first."""
    rng = np.random.default_rng(6)
    heads = Heads(B=1, Hq=2, Hkv=2, D=8, Dv=8)
    first, second = (make_call(rng, heads, make_cache(rng, heads, [7], MIXED, MIXED), 3) for _ in range(2))
    nodes = [
        helper.make_node("PagedAttention", ["Q0", "K0", "V0", "past0"], ["Y0", "", "appended0"], domain="ai.rt"),
        helper.make_node("PagedAttention", ["Y0", "K1", "V1", "past1"], ["Y1", "present1"], domain="ai.rt"),
    ]
    arrays = {f"{name}{i}": x for i, call in enumerate((first, second)) for name, x in feeds(call).items()}
    del arrays["Q1"]
    outputs = {
        name: (np.float32 if name[0] == "Y" else np.uint8, None) for name in ("Y0", "appended0", "Y1", "present1")
    }
    got = run(
        make_session(make_model(nodes, {n: (x.dtype, [None] * x.ndim) for n, x in arrays.items()}, outputs)), arrays
    )
    assert bytes(got["appended0"]) == check_y(first, got["Y0"])
    second.q = got["Y0"]
    assert bytes(got["present1"]) == second.past + check_y(second, got["Y1"])


def test_chained_with_quantize_paged_cache():
    """A page of the present is quantized and attended in the same graph."""
    rng = np.random.default_rng(7)
    heads = Heads(B=1, Hq=2, Hkv=1, D=8, Dv=8)
    call = make_call(rng, heads, make_cache(rng, heads, [6]), 2)
    scalar = {"one": np.float32(0.05), "zero": np.int8(0)}
    nodes = [
        node(("Q", "K", "V", "past"), ("Y", "present")),
        helper.make_node(
            "QuantizePagedCache", ["present", "index", "one", "zero", "one", "zero"], ["quantized"], domain="ai.rt"
        ),
        helper.make_node("PagedAttention", ["Q", "K", "V", "quantized"], ["Z"], domain="ai.rt"),
    ]
    initializers = [helper.make_tensor("index", onnx.TensorProto.INT64, (1,), [0])]
    initializers += [onnx.numpy_helper.from_array(np.array(x), name) for name, x in scalar.items()]
    inputs = {name: (x.dtype, [None] * x.ndim) for name, x in feeds(call).items()}
    outputs = {"quantized": (np.uint8, None), "Z": (np.float32, None)}
    got = run(make_session(make_model(nodes, inputs, outputs, initializers=initializers)), feeds(call))
    check_y(PagedCall(heads, bytes(got["quantized"]), call.q, call.k, call.v), got["Z"])


def test_runs_are_counted():
    rng = np.random.default_rng(8)
    call = make_call(rng, HEADS, make_cache(rng, HEADS, [4]), 1)
    session = make_session(model(call))
    onnx_ai_rt.kernel_runs(reset=True)
    for _ in range(3):
        run(session, feeds(call))
    run(length_session(), {"cache": np.frombuffer(call.past, np.uint8)})
    runs = onnx_ai_rt.kernel_runs()
    assert {(r.operator, r.count) for r in runs} == {("ai.rt::PagedAttention", 3), ("ai.rt::PagedCacheLength", 1)}
    assert all(r.path and r.target == onnx_ai_rt.cpu_info().chosen for r in runs)


@pytest.mark.skipif("AMX_EMULATED" not in onnx_ai_rt.cpu_info().targets, reason="tiles are a matter of x86-64")
@pytest.mark.parametrize(
    ("page", "dtype", "path"),
    [
        ("INT8", ml_dtypes.bfloat16, "paged_tiled_amx_bf16"),
        ("UINT4", np.float16, "paged_tiled_amx_f16"),
        ("FLOAT16", ml_dtypes.bfloat16, "paged_tiled_amx_bf16"),
        ("FLOAT", np.float16, "paged_tiled_f32"),
        ("INT8", np.float32, "paged_tiled_f32"),
    ],
)
def test_pages_on_tiles(page, dtype, path):
    before = onnx_ai_rt.cpu_info().chosen
    onnx_ai_rt.choose_cpu_target("AMX_EMULATED")
    try:
        rng = np.random.default_rng(9)
        call = make_call(rng, HEADS, make_cache(rng, HEADS, [40, 1, 30], [page], [page]), 20, dtype)
        session = make_session(model(call))
        onnx_ai_rt.kernel_runs(reset=True)
        check_outputs(call, run(session, feeds(call)))
        assert [r.path for r in onnx_ai_rt.kernel_runs()] == [path]
    finally:
        onnx_ai_rt.choose_cpu_target(before)


def test_many_threads_on_one_session():
    rng = np.random.default_rng(9)
    calls = [make_call(rng, HEADS, make_cache(rng, HEADS, [5] * n, MIXED, MIXED), 2) for n in range(4)]
    session = make_session(model(calls[0]), threads=2)
    expected = [call.run("appended") for call in calls]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(run, session, feeds(call)) for call in calls * 20]
        for job, want in zip(jobs, expected * 20, strict=True):
            for name, x in want.items():
                np.testing.assert_array_equal(job.result()[name], x)


def failure(call: PagedCall, **changes: np.ndarray | None) -> str:
    """The message for the call with other inputs; None leaves one out."""
    given = {name: x for name, x in (feeds(call) | changes).items() if x is not None}
    m = make_model(
        [node(given, OUTPUTS, **call.attributes)],
        {name: (x.dtype, [None] * x.ndim) for name, x in given.items()},
        {"Y": (given["Q"].dtype, None), "present": (np.uint8, None), "appended": (np.uint8, None)},
    )
    session = make_session(m)
    with pytest.raises(Exception, match=r"ai\.rt::PagedAttention: ") as error:
        run(session, given)
    return str(error.value)


def test_errors_of_shapes():
    rng = np.random.default_rng(10)
    call = make_call(rng, HEADS, make_cache(rng, HEADS, [4], MIXED, MIXED), 2)
    f32 = np.float32
    for words, changes in (
        ("input Q: expected rank 4, got shape (2,2,64)", {"Q": np.zeros((2, 2, 64), f32)}),
        ("input Q: expected at least one token", {n: getattr(call, n.lower())[:, :, :0] for n in "QKV"}),
        ("input K: expected the head size of Q, 16, got 8", {"K": np.zeros((2, 2, 2, 8), f32)}),
        ("input K: expected the sequence length of Q, 2, got 3", {"K": np.zeros((2, 2, 3, 16), f32)}),
        ("input V: expected the heads of K, 2, got 1", {"V": np.zeros((2, 1, 2, 10), f32)}),
        ("input V: expected the batch size of Q, 2, got 1", {"V": np.zeros((1, 2, 2, 10), f32)}),
        ("a multiple of the 2 key/value heads, got 3", {"Q": np.zeros((2, 3, 2, 16), f32)}),
        ("input past: expected a tensor of rank 1, got shape (1,3)", {"past": np.zeros((1, 3), np.uint8)}),
        ("input past, block 0, key: expected", {"past": np.frombuffer(b"\x0a\x00", np.uint8)}),
        ("input past, block 0: expected a serialized PagedCacheProto", {"past": np.frombuffer(b"\x0a\x01", np.uint8)}),
        ("input past, block 0, value: expected batch, heads and width of V", {"V": np.zeros((2, 2, 2, 9), f32)}),
    ):
        assert words in failure(call, **changes)


def test_errors_of_values_and_attributes():
    rng = np.random.default_rng(11)
    past = make_cache(rng, HEADS, [4], MIXED, MIXED)

    def call(**attributes: Any) -> PagedCall:
        return make_call(rng, HEADS, past, 2, **attributes)

    assert "attribute block_size: expected at least 1, got 0" in failure(call(block_size=0))
    assert "attribute left_window_size: expected -1 (unbounded) or more, got -2" in failure(call(left_window_size=-2))
    assert "attribute softcap: expected a finite number, got inf" in failure(call(softcap=np.inf))
    assert "attribute scale: expected a finite number, got nan" in failure(call(scale=np.nan))
    assert "expected at most 5 tokens together with the new ones" in failure(call(max_tokens=5))
    not_finite = call()
    not_finite.v[0, 0, 0, 0] = np.nan
    assert "input V: expected finite values" in failure(not_finite)

    with_key = call(key=NORMAL["INT8"])
    for side in ("key", "value"):
        only = scalars(side, NORMAL["INT8"])
        message = failure(call(), **{f"{side}_scale": only[f"{side}_scale"]})
        assert f"input {side}_zero_point: expected both {side}_scale and {side}_zero_point or neither" in message
        message = failure(call(), **{f"{side}_zero_point": only[f"{side}_zero_point"]})
        assert f"input {side}_scale: expected both" in message
    assert "input key_scale: expected a positive" in failure(with_key, key_scale=np.float32(-1))
    assert "input key_scale: expected a float scalar" in failure(with_key, key_scale=np.ones(2, np.float32))
    assert "input key_zero_point: expected a scalar" in failure(with_key, key_zero_point=np.zeros(2, np.int8))
    as_vectors = {name: x.reshape(1) for name, x in scalars("key", NORMAL["INT8"]).items()}
    got = run_call(with_key)
    session = make_session(
        make_model(
            [node(feeds(with_key), OUTPUTS)],
            {n: (x.dtype, [None] * max(1, x.ndim)) for n, x in feeds(with_key).items()},
            {"Y": (np.float32, None), "present": (np.uint8, None), "appended": (np.uint8, None)},
        )
    )
    for name, x in run(session, feeds(with_key) | as_vectors).items():
        np.testing.assert_array_equal(x, got[name])


def length_session(shape: Sequence[Any] = (None,)) -> ort.InferenceSession:
    length = helper.make_node("PagedCacheLength", ["cache"], ["length"], domain="ai.rt")
    return make_session(make_model([length], {"cache": (np.uint8, shape)}, {"length": (np.int64, None)}))


def test_paged_cache_length():
    rng = np.random.default_rng(12)
    session = length_session()
    for lengths in ((), (1,), (5, 3), (2, 1, 7)):
        cache = make_cache(rng, HEADS, lengths, MIXED, MIXED, spare=3)
        got = run(session, {"cache": np.frombuffer(cache, np.uint8)})["length"]
        assert got.dtype == np.int64
        assert got.shape == ()
        assert got == sum(lengths)
    with pytest.raises(
        Exception, match=r"ai\.rt::PagedCacheLength: input cache, block 0: expected a serialized PagedCacheProto"
    ):
        run(session, {"cache": np.frombuffer(b"\x0a\x05", np.uint8)})
    with pytest.raises(Exception, match=r"ai\.rt::PagedCacheLength: input cache: expected a tensor of rank 1"):
        run(length_session((None, None)), {"cache": np.zeros((1, 2), np.uint8)})


@needs_runtime(1, 24, "a shape function that does not crash on omitted inputs")
def test_shapes_before_a_run():
    new = {"Q": ["b", 8, "s", 64], "K": ["b", 2, "s", 64], "V": ["b", 2, "s", 48]}
    inputs = {name: (ml_dtypes.bfloat16, shape) for name, shape in new.items()} | {"past": (np.uint8, ["n"])}
    outputs = {"Y": (ml_dtypes.bfloat16, None), "present": (np.uint8, None), "appended": (np.uint8, None)}
    nodes = [
        node(inputs, outputs),
        helper.make_node("PagedCacheLength", ["present"], ["length"], domain="ai.rt"),
    ]
    session = make_session(make_model(nodes, inputs, outputs | {"length": (np.int64, None)}))
    shapes = {o.name: o.shape for o in session.get_outputs()}
    assert shapes["Y"] == ["b", 8, "s", 48]
    assert shapes["length"] == []
    # A shape function may tell the shape of the first output only: see csrc/ort/shape_inference.h.
    assert shapes["present"] == shapes["appended"] == []
