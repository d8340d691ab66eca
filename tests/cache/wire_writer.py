"""Writes the protobuf wire format from the encoding's own description: knows no message class and no project code."""

import struct

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)


def varint(value: int, nbytes: int = 0) -> bytes:
    """Base-128, low digits first; a negative value as 64-bit two's complement; padded to `nbytes` when it is longer."""
    value &= (1 << 64) - 1
    out = []
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    while len(out) < nbytes:
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def tag(number: int, wire_type: int, nbytes: int = 0) -> bytes:
    return varint(number << 3 | wire_type, nbytes)


def number(field: int, value: int) -> bytes:
    return tag(field, VARINT) + varint(value)


def data(field: int, content: bytes | str) -> bytes:
    """A length-delimited field: bytes, string, sub-message or packed numbers."""
    content = content.encode() if isinstance(content, str) else content
    return tag(field, BYTES) + varint(len(content)) + content


def fixed32(field: int, content: bytes) -> bytes:
    assert len(content) == 4
    return tag(field, FIXED32) + content


def fixed64(field: int, content: bytes) -> bytes:
    assert len(content) == 8
    return tag(field, FIXED64) + content


def group(field: int, content: bytes) -> bytes:
    return tag(field, START_GROUP) + content + tag(field, END_GROUP)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


FLOAT, UINT8, INT8, FLOAT16, BFLOAT16, UINT4, INT4, UINT2, INT2 = 1, 2, 3, 10, 16, 21, 22, 25, 26


def tensor(data_type: int, dims: tuple[int, ...], raw: bytes, name: str = "") -> bytes:
    """A TensorProto with raw data."""
    return b"".join(number(1, d) for d in dims) + number(2, data_type) + (data(8, name) if name else b"") + data(9, raw)


def encoded(
    dims: tuple[int, ...], storage_type: int, codes: bytes, scale: bytes, zero_point: bytes, more_affine: bytes = b""
) -> bytes:
    """An EncodedValueProto; `scale` and `zero_point` are TensorProtos, `more_affine` follows in the affine layout."""
    shape = b"".join(data(1, number(1, d)) for d in dims)
    affine = number(1, storage_type) + data(2, scale) + (data(3, zero_point) if zero_point else b"") + more_affine
    return data(1, affine) + data(3, data(1, number(1, FLOAT) + data(2, shape))) + data(4, codes)


def block(start: int, length: int, *payloads: bytes) -> bytes:
    """A PagedCacheBlockProto as a field of the cache; payloads come with their tags."""
    return data(1, number(1, start) + number(2, length) + b"".join(payloads))
