"""Where the fields of a serialized protobuf message lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)
_MAX_GROUPS = 100  # nested in one another, as in protobuf


class WireError(ValueError):
    """The bytes are not a protobuf message."""


class Field(NamedTuple):
    """One field: ``data[begin:end]`` with its tag, ``data[payload:end]`` without tag and length."""

    number: int
    wire_type: int
    begin: int
    payload: int
    end: int


def read_varint(data: bytes, at: int, end: int, max_bytes: int = 10) -> tuple[int, int]:
    """Returns the unsigned value (bits beyond the 64th fall off) and the offset behind it.

    Raises:
        WireError: for one that ends behind `end` or is longer than `max_bytes`.
    """
    value = 0
    for i in range(max_bytes):
        if at + i >= end:
            raise WireError(f"byte {at}: a number is cut off")
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & (1 << 64) - 1, at + i + 1
    raise WireError(f"byte {at}: a number is longer than {max_bytes} bytes")


def read_fields(data: bytes, begin: int = 0, end: int | None = None) -> Iterator[Field]:
    """The fields of the message in ``data[begin:end]``, in the order of the bytes; a group is one field.

    Raises:
        WireError: with the offset, for what protobuf would refuse.
    """
    end = len(data) if end is None else end
    at = begin
    while at < end:
        number, wire_type, payload = _read_tag(data, at, end)
        if wire_type == END_GROUP:
            raise WireError(f"byte {at}: the end of a group that did not begin")
        payload, behind = _skip(data, at, payload, end, number, wire_type, 0)
        yield Field(number, wire_type, at, payload, behind)
        at = behind


def _read_tag(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    tag, payload = read_varint(data, at, end, max_bytes=5)
    if tag >= 1 << 32 or tag >> 3 == 0 or tag & 7 > FIXED32:
        raise WireError(f"byte {at}: {tag} is not the tag of a field")
    return tag >> 3, tag & 7, payload


def _skip(data: bytes, at: int, payload: int, end: int, number: int, wire_type: int, depth: int) -> tuple[int, int]:
    """Returns where the payload begins and ends."""
    if wire_type == VARINT:
        return payload, read_varint(data, payload, end)[1]
    if wire_type == START_GROUP:
        if depth >= _MAX_GROUPS:
            raise WireError(f"byte {at}: more than {_MAX_GROUPS} nested groups")
        inner = payload
        while True:
            inner_number, inner_type, inner_payload = _read_tag(data, inner, end)
            if inner_type == END_GROUP:
                if inner_number != number:
                    raise WireError(f"byte {inner}: the end of group {inner_number} inside of group {number}")
                return payload, inner_payload
            inner = _skip(data, inner, inner_payload, end, inner_number, inner_type, depth + 1)[1]
    if wire_type == BYTES:
        size, payload = read_varint(data, payload, end)
    else:
        size = 8 if wire_type == FIXED64 else 4
    if size > end - payload:
        raise WireError(f"byte {at}: field {number} of {size} bytes ends behind its message")
    return payload, payload + size
