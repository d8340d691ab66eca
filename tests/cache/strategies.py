"""Hypothesis builders of paged caches: every format, raw and typed fields, every granularity of parameters."""

import ml_dtypes
import numpy as np
import onnx
from cache.scramble import scrambled
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from onnx import TensorProto

from onnx_ai_rt.proto import EncodedValueProto, PagedCacheProto

DENSE = {"FLOAT": np.float32, "FLOAT16": np.float16, "BFLOAT16": ml_dtypes.bfloat16}
BITS = {"INT8": 8, "UINT8": 8, "INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2}
ALL_FORMATS = (*DENSE, *BITS)

Shape = tuple[int, int, int, int]


def pack(codes: np.ndarray, bits: int) -> bytes:
    """Packs one code after the other, by plain integer arithmetic."""
    number = 0
    for i, code in enumerate(codes.reshape(-1).tolist()):
        number |= (code & ((1 << bits) - 1)) << (i * bits)
    return number.to_bytes((codes.size * bits + 7) // 8, "little")


def code_range(name: str) -> tuple[int, int]:
    bits = BITS[name]
    return (0, 2**bits - 1) if name.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _tensor(draw: DrawFn, name: str, values: np.ndarray) -> TensorProto:
    """A tensor of `values` (codes as integers for the affine formats) in its raw or its typed field."""
    tensor = TensorProto(dims=values.shape, data_type=getattr(TensorProto, name))
    typed = draw(st.booleans())
    if name in BITS and BITS[name] < 8:
        raw = pack(values, BITS[name])
        numbers = list(raw)
    elif name in BITS:
        raw = values.astype(np.int8 if name == "INT8" else np.uint8).tobytes()
        numbers = values.reshape(-1).tolist()
    else:
        raw = values.tobytes()
        numbers = values.reshape(-1).tolist() if name == "FLOAT" else values.reshape(-1).view(np.uint16).tolist()
    if typed:
        (tensor.float_data if name == "FLOAT" else tensor.int32_data).extend(numbers)
    else:
        tensor.raw_data = raw
    return tensor


@st.composite
def dense(draw: DrawFn, name: str, shape: Shape, length: int) -> TensorProto:
    """A dense payload: finite valid rows, with zeros, subnormals and large values among them; NaN behind them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3, shape)
    special = rng.random(shape)
    values[special < 0.05] = -0.0
    values[(special >= 0.05) & (special < 0.08)] = 1e-40
    values[(special >= 0.08) & (special < 0.1)] = 3e4
    values = values.astype(np.float32).astype(DENSE[name])
    if draw(st.booleans()):
        values[:, :, length:] = np.nan
    return _tensor(draw, name, values)


@st.composite
def affine(draw: DrawFn, name: str, shape: Shape) -> EncodedValueProto:
    """An affine payload with parameters of any granularity."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    low, high = code_range(name)
    message = EncodedValueProto(raw_data=pack(rng.integers(low, high + 1, shape), BITS[name]))
    message.logical_type.CopyFrom(onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, shape))
    layout = message.affine
    layout.storage_type = getattr(TensorProto, name)
    granularity = draw(st.sampled_from(("tensor", "axis", "blocked")))
    parameters: tuple[int, ...] = draw(st.sampled_from(((), (1,))))
    if granularity != "tensor":
        layout.axis = draw(st.integers(-4, 3))
        parameters = (shape[layout.axis],)
    if granularity == "blocked":
        layout.block_size = draw(st.sampled_from((1, 2, 3, 5, 1 << 40)))
        blocks = list(shape)
        blocks[layout.axis] = -(-shape[layout.axis] // layout.block_size)
        parameters = tuple(blocks)
    exponents = rng.uniform(-30, 30, parameters) if draw(st.integers(0, 4)) == 0 else rng.uniform(-4, 1, parameters)
    layout.scale.CopyFrom(_tensor(draw, "FLOAT", np.asarray(10.0**exponents, np.float32)))
    if draw(st.booleans()):
        zero_point = np.asarray(rng.integers(low, high + 1, parameters))
        layout.zero_point.CopyFrom(_tensor(draw, name, zero_point))
    if draw(st.booleans()):
        layout.signed_storage = low < 0
        elements = int(np.prod(shape))
        sizes = [(elements * bits + 7) // 8 for bits in (8, 4, 2)]
        if sizes.count(len(message.raw_data)) == 1 and draw(st.booleans()):
            layout.ClearField("storage_type")  # the size tells it
    return message


@st.composite
def caches(
    draw: DrawFn, max_blocks: int = 4, formats: tuple[str, ...] = ALL_FORMATS, max_capacity: int = 5
) -> PagedCacheProto:
    """A valid cache, as a message. All that it decodes to is finite."""
    batch, heads = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    widths = {"key": draw(st.integers(1, 9)), "value": draw(st.integers(1, 9))}
    cache = PagedCacheProto()
    start = 0
    for _ in range(draw(st.integers(0, max_blocks))):
        capacity = draw(st.integers(1, max_capacity))
        length = draw(st.integers(1, capacity))
        block = cache.blocks.add(start=start, length=length)
        start += length
        for side, width in widths.items():
            name = draw(st.sampled_from(formats))
            shape = (batch, heads, capacity, width)
            if name in DENSE:
                payload = getattr(block, side)
                payload.CopyFrom(draw(dense(name, shape, length)))
            else:
                payload = getattr(block, f"encoded_{side}")
                payload.CopyFrom(draw(affine(name, shape)))
            if draw(st.booleans()):
                payload.name = draw(st.sampled_from(("", "k", "présent")))
            if draw(st.booleans()):
                payload.doc_string = draw(st.sampled_from(("", "a page")))
    if draw(st.booleans()):
        cache.name = draw(st.sampled_from(("", "layer 3")))
    if draw(st.booleans()):
        cache.doc_string = "of a test"
    return cache


@st.composite
def cache_bytes(draw: DrawFn, cache: PagedCacheProto) -> bytes:
    """The cache in one of the ways that protobuf reads as the same one, unknown fields and concatenation included."""
    at = draw(st.integers(0, len(cache.blocks)))
    first = PagedCacheProto(blocks=cache.blocks[:at])
    rest = PagedCacheProto()
    rest.CopyFrom(cache)
    del rest.blocks[:at]
    return draw(scrambled(first)) + draw(scrambled(rest))


@st.composite
def scrambled_caches(draw: DrawFn, max_blocks: int = 4) -> tuple[PagedCacheProto, bytes]:
    """A valid cache and bytes that protobuf reads as it."""
    cache = draw(caches(max_blocks))
    return cache, draw(cache_bytes(cache))
