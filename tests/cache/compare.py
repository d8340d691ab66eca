"""The C++ reader and the reference, side by side."""

from collections.abc import Callable

import numpy as np
import pytest
from google.protobuf.internal import api_implementation

from onnx_ai_rt import _core
from onnx_ai_rt.reference.paged_cache import Block, CacheError, Payload, parse, validate

Header = tuple[object, ...]

needs_compiled_protobuf = pytest.mark.skipif(
    api_implementation.Type() == "python",
    reason="protobuf's implementation in Python is laxer about damaged bytes, and takes long tags for unknown ones",
)

# Refused by us and by some releases of protobuf: field number 0 inside an unknown group, and lengths of 6 to 10 bytes.
_WHERE_RELEASES_DIFFER = ("field number 0", "length of more than 5 bytes")


def read_reference(data: bytes) -> list[Block] | None:
    """The pages, or None where the reference refuses the bytes."""
    try:
        return validate(parse(data))
    except CacheError:
        return None


def read_core(data: bytes) -> list[dict[str, object]] | None:
    """The pages, or None where the C++ reader refuses the bytes with one sentence."""
    try:
        return _core.parse_paged_cache(data, "Op", "cache")
    except ValueError as error:
        message = str(error)
        assert message.startswith("Op: input cache"), message
        assert all(word in message for word in ("expected", "got")), message
        assert "\n" not in message, message
        return None


def _text(get: Callable[[], str]) -> str:
    """Readers take strings that are not UTF-8; Python's messages then raise or give bytes when they are read."""
    try:
        text = get()
    except UnicodeDecodeError:
        text = None
    return text if isinstance(text, str) else "(not UTF-8)"


def _reference_payload(payload: Payload) -> Header:
    message = payload.message
    name = _text(lambda: message.name) if message.HasField("name") else None
    header: Header = (payload.format.data_type, payload.shape, payload.nbytes, name)
    if payload.format.is_affine:
        affine = message.affine
        axis = affine.axis % 4 if affine.HasField("axis") else None
        header += (axis, affine.HasField("block_size"))
    return header


def _core_payload(payload: dict) -> Header:
    name = None if payload["name"] is None else _text(payload["name"].decode)
    header: Header = (payload["data_type"], payload["shape"], payload["nbytes"], name)
    if "axis" in payload:
        header += (payload["axis"], payload["block_size"] is not None)
    return header


def reference_headers(blocks: list[Block]) -> list[Header]:
    return [(b.start, b.length, _reference_payload(b.key), _reference_payload(b.value)) for b in blocks]


def core_headers(blocks: list[dict]) -> list[Header]:
    return [(b["start"], b["length"], _core_payload(b["key"]), _core_payload(b["value"])) for b in blocks]


def assert_same_reading(data: bytes) -> bool:
    """Both refuse the bytes, or both read the same pages from them. Returns whether they are a cache."""
    expected, got = read_reference(data), read_core(data)
    if got is None and any(words in reason(data)[1] for words in _WHERE_RELEASES_DIFFER):
        return False
    assert (expected is None) == (got is None), (data.hex(), reason(data))
    if expected is None:
        return False
    assert core_headers(got) == reference_headers(expected)
    return True


def reason(data: bytes) -> tuple[str, str]:
    """What each reader says, for messages of failing tests."""

    def call(f, *args):
        try:
            return f"accepted: {f(*args)}"
        except ValueError as error:
            return str(error)

    return call(lambda d: validate(parse(d)), data), call(_core.parse_paged_cache, data)


def decoded(data: bytes) -> list[tuple[np.ndarray, np.ndarray]]:
    """Keys and values of all pages by the reference."""
    return [(b.key.decode(), b.value.decode()) for b in validate(parse(data))]
