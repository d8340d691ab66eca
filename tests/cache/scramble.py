"""Writes a message in one of the many ways that protobuf reads as the same message."""

from collections.abc import Callable

from cache import wire_writer as w
from google.protobuf.descriptor import FieldDescriptor as Fd
from google.protobuf.internal import api_implementation
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

_VARINT_TYPES = {Fd.TYPE_INT32, Fd.TYPE_INT64, Fd.TYPE_UINT64, Fd.TYPE_BOOL, Fd.TYPE_ENUM}
# Protobuf's implementation in Python takes a field whose tag is longer than it need be for an unknown one.
_TAG_SIZES = (0,) if api_implementation.Type() == "python" else (0, 0, 0, 5)
_UNKNOWN_NUMBERS = (100, 999, 12345, (1 << 29) - 1)


@st.composite
def unknown_field(draw: DrawFn, depth: int = 2) -> bytes:
    """A field that no message here knows, of any wire type."""
    return draw(_any_field(draw(st.sampled_from(_UNKNOWN_NUMBERS)), depth))


def _any_field(number: int, depth: int, allowed: tuple[int, ...] = (0, 1, 2, 3, 5)) -> st.SearchStrategy[bytes]:
    kinds = {
        w.VARINT: st.integers(0, 2**64 - 1).map(lambda v: w.number(number, v)),
        w.FIXED64: st.binary(min_size=8, max_size=8).map(lambda v: w.fixed64(number, v)),
        w.BYTES: st.binary(max_size=4).map(lambda v: w.data(number, v)),
        w.START_GROUP: (unknown_field(depth - 1) if depth else st.just(b"")).map(lambda v: w.group(number, v)),
        w.FIXED32: st.binary(min_size=4, max_size=4).map(lambda v: w.fixed32(number, v)),
    }
    return st.one_of([kinds[k] for k in allowed])


def _wrong_wire_type(field: Fd) -> st.SearchStrategy[bytes]:
    """A field with a known number and a wire type that it cannot have: unknown to a parser."""
    right = {w.VARINT} if field.type in _VARINT_TYPES else {w.BYTES}
    if field.type == Fd.TYPE_FLOAT:
        right = {w.FIXED32}
    if field.type == Fd.TYPE_DOUBLE:
        right = {w.FIXED64}
    if field.is_repeated if hasattr(field, "is_repeated") else field.label == Fd.LABEL_REPEATED:
        right = right | {w.BYTES}
    return _any_field(field.number, 1, tuple({0, 1, 2, 3, 5} - right))


def _long_varint(draw: DrawFn, value: int, longest: int) -> bytes:
    return w.varint(value, draw(st.sampled_from((0, 0, 0, 2, longest))))


def _element(field: Fd, value: object, draw: DrawFn) -> tuple[int, bytes]:
    """Wire type and content of one value; a length-delimited content without its length."""
    if field.type in _VARINT_TYPES:
        return w.VARINT, _long_varint(draw, int(value), 10)  # type: ignore[call-overload]
    if field.type == Fd.TYPE_FLOAT:
        return w.FIXED32, w.floats(value)  # type: ignore[arg-type]
    if field.type == Fd.TYPE_MESSAGE:
        return w.BYTES, b"".join(pieces(draw, value))
    return w.BYTES, value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[call-overload]


def _field_bytes(draw: DrawFn, field: Fd, wire_type: int, content: bytes) -> bytes:
    head = w.tag(field.number, wire_type, draw(st.sampled_from(_TAG_SIZES)))
    return head + (_long_varint(draw, len(content), 5) if wire_type == w.BYTES else b"") + content


def _singular(draw: DrawFn, field: Fd, value: object) -> list[bytes]:
    if field.type == Fd.TYPE_MESSAGE:  # parts merge
        parts = pieces(draw, value)
        cuts = sorted(draw(st.lists(st.integers(0, len(parts)), max_size=2)))
        groups = [parts[a:b] for a, b in zip([0, *cuts], [*cuts, len(parts)], strict=True)]
        return [_field_bytes(draw, field, w.BYTES, b"".join(g)) for g in groups]
    occurrences = []
    if draw(st.booleans()):  # the last one wins
        decoy: object = 1 if field.type == Fd.TYPE_ENUM else 7
        if field.type in (Fd.TYPE_STRING, Fd.TYPE_BYTES):
            decoy = "decoy"
        if field.type == Fd.TYPE_FLOAT:
            decoy = 7.0
        occurrences.append(_field_bytes(draw, field, *_element(field, decoy, draw)))
    return [*occurrences, _field_bytes(draw, field, *_element(field, value, draw))]


def _repeated(draw: DrawFn, field: Fd, values: list[object]) -> list[bytes]:
    elements = [_element(field, v, draw) for v in values]
    if field.type not in _VARINT_TYPES and field.type != Fd.TYPE_FLOAT:
        return [_field_bytes(draw, field, *e) for e in elements]
    out, at = [], 0
    while at < len(elements):  # runs of packed and unpacked numbers
        run = draw(st.integers(1, len(elements) - at))
        if draw(st.booleans()):
            out.append(_field_bytes(draw, field, w.BYTES, b"".join(e[1] for e in elements[at : at + run])))
        else:
            out += [_field_bytes(draw, field, *e) for e in elements[at : at + run]]
        at += run
    return out


def _decoys_of_oneof(draw: DrawFn, field: Fd) -> list[bytes]:
    """Another member of the field's oneof, which the field then replaces."""
    others = [f for f in field.containing_oneof.fields if f is not field and f.type == Fd.TYPE_MESSAGE]
    if not others or draw(st.integers(0, 3)):
        return []
    return [_field_bytes(draw, draw(st.sampled_from(others)), w.BYTES, draw(unknown_field()))]


def pieces(draw: DrawFn, message: object) -> list[bytes]:
    """The fields of a message in an order that means the same; joined they are the message.

    Wherever two numbers of fields are independent they are mixed, with unknown fields between them.
    """
    queues: list[list[bytes]] = []
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == Fd.LABEL_REPEATED
        if repeated:
            queues.append(_repeated(draw, field, list(value)))
        else:
            decoys = _decoys_of_oneof(draw, field) if field.containing_oneof else []
            queues.append(decoys + _singular(draw, field, value))
    fields = message.DESCRIPTOR.fields  # type: ignore[attr-defined]
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        junk: Callable[[], st.SearchStrategy[bytes]] = unknown_field
        if draw(st.booleans()) and fields:
            chosen = draw(st.sampled_from(list(fields)))
            queues.append([draw(_wrong_wire_type(chosen))])
        else:
            queues.append([draw(junk())])
    out = []
    queues = [q for q in queues if q]
    if not draw(st.booleans()):
        return [p for q in queues for p in q]  # ascending, the unknown ones last
    while queues:
        queue = draw(st.sampled_from(queues))
        out.append(queue.pop(0))
        queues = [q for q in queues if q]
    return out


@st.composite
def scrambled(draw: DrawFn, message: object) -> bytes:
    """Bytes that protobuf reads as `message`, with unknown fields besides."""
    return b"".join(pieces(draw, message))
