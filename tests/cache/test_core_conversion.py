"""The conversion kernels against numpy, exactly, on every instruction set of this CPU."""

import itertools

import numpy as np
import pytest

from onnx_ai_rt import _core
from onnx_ai_rt.reference.quantize import (
    FORMATS,
    Format,
    dequantize,
    expand_parameters,
    narrow,
    pack_codes,
    quantize,
    unpack_codes,
)

TARGETS = _core.supported_cpu_targets()
AFFINE = [f for f in FORMATS.values() if f.is_affine]
DENSE = [f for f in FORMATS.values() if not f.is_affine]
FLOAT = FORMATS["FLOAT"]
NAN, INF = np.float32("nan"), np.float32("inf")


@pytest.fixture(params=TARGETS, autouse=True)
def cpu_target(request):
    _core.choose_cpu_target(request.param)
    yield request.param
    _core.choose_cpu_target("")


def store(values: np.ndarray, format: Format) -> bytes:
    """A payload of float32 values (dense) or codes (affine)."""
    return pack_codes(values, format.bits) if format.is_affine else values.astype(format.dtype).tobytes()


def parameter_shape(shape, axis, block_size):
    if axis is None:
        return ()
    if block_size is None:
        return (shape[axis],)
    return tuple(-(-d // block_size) if i == axis else d for i, d in enumerate(shape))


def convert(data, source: Format, shape, length, target: Format, scale=1.0, zero_point=0, capacity=None, **more):
    capacity = shape[2] if capacity is None else capacity
    result = _core.convert_payload(
        data, source.data_type, shape, length, target.data_type, scale, zero_point, capacity, **more
    )
    return bytes(result)


def expected(values, capacity, target: Format, scale=1.0, zero_point=0):
    """What the valid rows `values` become in a payload of `capacity` rows."""
    shape = (*values.shape[:2], capacity, values.shape[3])
    if target.is_affine:
        codes = np.full(shape, zero_point, np.int32)
        codes[:, :, : values.shape[2]] = quantize(values, scale, zero_point, target)
        return pack_codes(codes, target.bits)
    rows = np.zeros(shape, target.dtype)
    rows[:, :, : values.shape[2]] = narrow(values, target)
    return rows.tobytes()


def random_payload(rng, source: Format, shape, length, axis=None, block_size=None):
    """Bytes, the float32 values of the valid rows, and the keywords that describe the parameters."""
    if not source.is_affine:
        stored = (rng.normal(size=shape) * 10.0 ** rng.integers(-6, 3, shape)).astype(np.float32)
        stored[:, :, length:] = np.nan
        stored = stored.astype(source.dtype)
        return stored.tobytes(), stored[:, :, :length].astype(np.float32), {}
    codes = rng.integers(source.low, source.high + 1, shape)
    pairs = parameter_shape(shape, axis, block_size)
    scales = np.asarray(10.0 ** rng.uniform(-3, 1, pairs), np.float32)
    zero_points = np.asarray(rng.integers(source.low, source.high + 1, pairs))
    wide = [expand_parameters(p, shape, axis, block_size) for p in (scales, zero_points)]
    values = dequantize(codes, *wide)[:, :, :length]
    parameters = {
        "axis": -1 if axis is None else axis,
        "block_size": block_size or 0,
        "scales": scales.tobytes(),
        "zero_points": pack_codes(zero_points, source.bits),
    }
    return pack_codes(codes, source.bits), values, parameters


@pytest.mark.parametrize("target", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("source", FORMATS.values(), ids=lambda f: f.name)
def test_every_pair_of_formats(source, target):
    rng = np.random.default_rng(1)
    for width, (capacity, length) in itertools.product((1, 2, 3, 5, 7, 8, 33, 130), ((1, 1), (4, 4), (5, 3), (7, 1))):
        shape = (2, 3, capacity, width)
        data, values, parameters = random_payload(rng, source, shape, length)
        zero_point = int(rng.integers(target.low, target.high + 1))
        scale = float(np.float32(10.0 ** rng.uniform(-3, 1)))
        for parts in (1, 3):
            got = convert(data, source, shape, length, target, scale, zero_point, parts=parts, **parameters)
            assert got == expected(values, capacity, target, scale, zero_point)


@pytest.mark.parametrize("target", [FORMATS["FLOAT"], FORMATS["INT4"], FORMATS["FLOAT16"]], ids=lambda f: f.name)
@pytest.mark.parametrize("source", AFFINE, ids=lambda f: f.name)
@pytest.mark.parametrize("axis", range(4))
def test_every_granularity(source, target, axis):
    rng = np.random.default_rng(2)
    for width, block_size in itertools.product((1, 7, 40, 1500), (None, 1, 2, 3, 16, 33, 1 << 40)):
        shape = (2, 3, 3, width)
        data, values, parameters = random_payload(rng, source, shape, 2, axis, block_size)
        got = convert(data, source, shape, 2, target, 0.5, target.low, **parameters)
        assert got == expected(values, 3, target, 0.5, target.low)


@pytest.mark.parametrize("source", FORMATS.values(), ids=lambda f: f.name)
def test_more_than_a_tile(source):
    rng = np.random.default_rng(3)
    for width in (1023, 1025, 4099):
        shape = (1, 3, 3, width)
        data, values, parameters = random_payload(rng, source, shape, 2)
        for target in FORMATS.values():
            got = convert(data, source, shape, 2, target, 0.01, 1, **parameters)
            assert got == expected(values, 3, target, 0.01, 1)


def test_capacity_may_change():
    """A page cut out of a tensor: its rows lie further apart than the page's."""
    rng = np.random.default_rng(4)
    data, values, _ = random_payload(rng, FLOAT, (2, 2, 9, 5), 3)
    for target in FORMATS.values():
        for capacity in (3, 4):
            got = convert(data, FLOAT, (2, 2, 9, 5), 3, target, 0.1, 1, capacity)
            assert got == expected(values, capacity, target, 0.1, 1)


@pytest.mark.parametrize("source", FORMATS.values(), ids=lambda f: f.name)
def test_any_alignment(source):
    rng = np.random.default_rng(5)
    shape = (1, 2, 3, 19)
    data, values, parameters = random_payload(rng, source, shape, 2)
    for target in FORMATS.values():
        want = expected(values, 3, target, 0.1, 1)
        for shift in range(1, 9):
            moved = np.empty(len(data) + shift, np.uint8)
            moved[shift:] = np.frombuffer(data, np.uint8)
            out = np.full(len(want) + shift + 1, 0xA5, np.uint8)
            convert(moved[shift:], source, shape, 2, target, 0.1, 1, out=out[shift : len(want) + shift], **parameters)
            assert bytes(out[shift : shift + len(want)]) == want
            assert set(out[:shift]) | {out[-1]} == {0xA5}


SMALL = (0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 7.5, -8.5, 15.5)
LARGE = (126.5, 127.5, -128.5, 255.5, 2**22, 8388607.5, 2**23 + 1, 2**24 + 2, 2**31, -(2**31), 2**32)
EDGES = np.array([*SMALL, *LARGE, 3.4028235e38, -3.4028235e38], np.float32)


@pytest.mark.parametrize("target", AFFINE, ids=lambda f: f.name)
def test_ties_saturation_and_extreme_scales(target):
    values = np.concatenate([EDGES, np.arange(-300, 301, dtype=np.float32) / 2, np.nextafter(EDGES[:-2], INF)])
    values = values.reshape(1, 1, 1, -1)
    for scale in (1, 0.5, 0.1, 3, 1e-45, 1.1754944e-38, 3.4028235e38, 1e-7, 1e7):
        for zero_point in {target.low, 0, 1, target.high}:
            got = convert(values.tobytes(), FLOAT, values.shape, 1, target, scale, zero_point)
            assert got == expected(values, 1, target, scale, zero_point)


@pytest.mark.parametrize("target", AFFINE, ids=lambda f: f.name)
def test_the_quotient_is_divided(target):
    """Multiplication with 1/scale would round some of these to the other side."""
    rng = np.random.default_rng(6)
    for _ in range(20):
        scale = np.float32(rng.uniform(0.001, 1))
        ties = (rng.integers(-140, 140, 4000) + 0.5).astype(np.float32) * scale
        values = np.stack([ties, np.nextafter(ties, INF), np.nextafter(ties, -INF)]).reshape(1, 1, 3, -1)
        got = convert(values.tobytes(), FLOAT, values.shape, 3, target, float(scale), 0)
        assert got == expected(values, 3, target, float(scale), 0)


@pytest.mark.parametrize("source", AFFINE, ids=lambda f: f.name)
def test_every_code_and_zero_point(source):
    codes = np.arange(source.low, source.high + 1).reshape(1, 1, 1, -1)
    for zero_point in range(source.low, source.high + 1, 1 if source.bits < 8 else 37):
        for scale in np.float32([0.1, 1e-45, 1e35]):
            zero = pack_codes(np.array([zero_point]), source.bits)
            data = pack_codes(codes, source.bits)
            got = convert(data, source, codes.shape, 1, FLOAT, scales=scale.tobytes(), zero_points=zero)
            assert got == dequantize(codes, scale, zero_point).tobytes()
    assert np.array_equal(unpack_codes(pack_codes(codes, source.bits), source, codes.size), codes.reshape(-1))


def finite_patterns(format: Format) -> np.ndarray:
    patterns = np.arange(65536, dtype=np.uint16).view(format.dtype)
    with np.errstate(invalid="ignore"):
        return patterns[np.isfinite(patterns)]


@pytest.mark.parametrize("format", DENSE[1:], ids=lambda f: f.name)
def test_every_16_bit_pattern(format):
    patterns = finite_patterns(format).reshape(1, 1, 1, -1)
    got = convert(patterns.tobytes(), format, patterns.shape, 1, FLOAT)
    assert got == patterns.astype(np.float32).tobytes()
    assert convert(patterns.tobytes(), format, patterns.shape, 1, format) == patterns.tobytes()


@pytest.mark.parametrize("format", DENSE[1:], ids=lambda f: f.name)
def test_narrowing_rounds_to_even(format):
    """All values of the format, the middles between two, and the floats next to both."""
    exact = np.sort(finite_patterns(format).astype(np.float32))
    with np.errstate(over="ignore"):
        middles = (exact[1:].astype(np.float64) + exact[:-1]) / 2
    values = np.concatenate([exact, middles.astype(np.float32), EDGES])
    with np.errstate(over="ignore"):
        values = np.concatenate([values, np.nextafter(values, INF), np.nextafter(values, -INF)])
        values = values[np.isfinite(values) & np.isfinite(values.astype(format.dtype))].reshape(1, 1, 1, -1)
        assert convert(values.tobytes(), FLOAT, values.shape, 1, format) == values.astype(format.dtype).tobytes()


@pytest.mark.parametrize("place", [0, 5, 63, 64, 129])
@pytest.mark.parametrize("bad", [NAN, -NAN, INF, -INF])
@pytest.mark.parametrize("source", DENSE, ids=lambda f: f.name)
def test_values_that_are_not_finite(source, bad, place):
    values = np.ones((1, 1, 1, 130), source.dtype)
    values[..., place] = bad
    for target in FORMATS.values():
        with pytest.raises(ValueError, match=f"not finite: .* at batch 0, head 0, token 0, column {place}$"):
            convert(values.tobytes(), source, values.shape, 1, target)


def test_values_that_overflow():
    edge = {"FLOAT16": (65519.996, 65520.0), "BFLOAT16": (3.3961773e38, 3.3961775e38)}
    for name, (fits, too_large) in edge.items():
        fits, too_large = np.float32([fits, too_large])
        assert np.isfinite(fits.astype(FORMATS[name].dtype))
        assert too_large == np.nextafter(fits, INF)
        for sign, place in itertools.product((1, -1), (0, 17)):
            values = np.zeros((1, 1, 1, 18), np.float32)
            values[..., place] = sign * fits
            got = convert(values.tobytes(), FLOAT, values.shape, 1, FORMATS[name])
            assert got == values.astype(FORMATS[name].dtype).tobytes()
            values[..., place] = sign * too_large
            with pytest.raises(ValueError, match=f"overflow: .* at batch 0, head 0, token 0, column {place}$"):
                convert(values.tobytes(), FLOAT, values.shape, 1, FORMATS[name])


@pytest.mark.parametrize("target", FORMATS.values(), ids=lambda f: f.name)
def test_decoding_that_overflows(target):
    codes = np.zeros((1, 1, 2, 21), np.int32)
    codes[0, 0, 1, 3] = 100  # times the largest scale: infinite
    scale = np.float32(3e38).tobytes()
    data = pack_codes(codes, 8)
    with pytest.raises(ValueError, match=r"overflow: inf at batch 0, head 0, token 1, column 3$"):
        convert(data, FORMATS["INT8"], codes.shape, 2, target, scales=scale)
    assert convert(data, FORMATS["INT8"], codes.shape, 1, target, scales=scale) == expected(
        np.zeros((1, 1, 1, 21), np.float32), 2, target
    )


def test_unused_rows_are_not_read():
    values = np.full((1, 2, 3, 5), np.nan, np.float32)
    values[:, :, :1] = 1.0
    for source, target in itertools.product(DENSE, FORMATS.values()):
        data = values.astype(source.dtype).tobytes()
        got = convert(data, source, values.shape, 1, target, 1.0, 1)
        assert got == expected(values[:, :, :1], 3, target, 1.0, 1)


def test_narrowing_of_any_float():
    values = np.random.default_rng(7).integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    for format in DENSE[1:]:
        with np.errstate(all="ignore"):
            finite = values[np.isfinite(values) & np.isfinite(values.astype(format.dtype))].reshape(1, 1, 1, -1)
        assert convert(finite.tobytes(), FLOAT, finite.shape, 1, format) == finite.astype(format.dtype).tobytes()
