"""A reader of the part of the proto2 language that ``paged_cache.proto`` uses.

Generated code refuses to load under another protobuf release than its own, so the message classes are made when the
package is imported, from the ``.proto`` file itself. The parser is strict: whatever it does not know is an error.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2

_TOKEN = re.compile(r'\s+|//[^\n]*|(?P<token>[A-Za-z_][\w.]*|\d+|"[^"\n]*"|[{}=;])')
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_SCALARS = ("int64", "uint64", "bool", "string", "bytes")


class ProtoSyntaxError(ValueError):
    """The text is not in the part of the proto2 language that this module reads."""


class _Tokens:
    """The tokens of a text, with their line numbers for messages."""

    def __init__(self, text: str) -> None:
        self._items: list[tuple[str, int]] = []
        self._next = 0
        position, line = 0, 1
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ProtoSyntaxError(f"line {line}: unexpected character {text[position]!r}")
            if match["token"] is not None:
                self._items.append((match["token"], line))
            line += match[0].count("\n")
            position = match.end()
        self._last_line = line

    def peek(self) -> str:
        return self._items[self._next][0] if self._next < len(self._items) else ""

    def take(self, *expected: str) -> str:
        """Returns the next token, which must be one of `expected` when any is given."""
        token = self.peek()
        if not token or (expected and token not in expected):
            wanted = " or ".join(repr(e) for e in expected) or "more text"
            raise self.error(f"expected {wanted}, got {token or 'the end of the file'!r}")
        self._next += 1
        return token

    def identifier(self) -> str:
        token = self.take()
        if not _IDENTIFIER.fullmatch(token):
            self._next -= 1
            raise self.error(f"expected a name, got {token!r}")
        return token

    def error(self, message: str) -> ProtoSyntaxError:
        line = self._items[self._next][1] if self._next < len(self._items) else self._last_line
        return ProtoSyntaxError(f"line {line}: {message}")


def parse_proto(text: str, file_name: str) -> descriptor_pb2.FileDescriptorProto:
    """Reads a ``.proto`` text: ``syntax``, ``package``, ``import``, and messages of ``optional``, ``repeated`` and
    ``oneof`` fields of the types int64, uint64, bool, string, bytes and named ones.

    Named types are left unresolved (``type_name`` as written, no ``type``): see `resolve_types`.

    Raises:
        ProtoSyntaxError: with the line, for everything else.
    """
    tokens = _Tokens(text)
    for token in ("syntax", "=", '"proto2"', ";", "package"):
        tokens.take(token)
    file = descriptor_pb2.FileDescriptorProto(name=file_name, package=tokens.identifier())
    tokens.take(";")
    while tokens.peek() == "import":
        tokens.take("import")
        file.dependency.append(tokens.take().strip('"'))
        tokens.take(";")
    while tokens.peek():
        tokens.take("message")
        message = file.message_type.add(name=tokens.identifier())
        tokens.take("{")
        while tokens.peek() != "}":
            _parse_member(tokens, message)
        tokens.take("}")
    return file


def _parse_member(tokens: _Tokens, message: Any) -> None:
    kind = tokens.take("optional", "repeated", "oneof")
    if kind != "oneof":
        _parse_field(tokens, message, repeated=kind == "repeated")
        return
    message.oneof_decl.add(name=tokens.identifier())
    tokens.take("{")
    while tokens.peek() != "}":
        _parse_field(tokens, message, repeated=False).oneof_index = len(message.oneof_decl) - 1
    tokens.take("}")


def _parse_field(tokens: _Tokens, message: Any, *, repeated: bool) -> Any:
    types = descriptor_pb2.FieldDescriptorProto
    type_name = tokens.take()
    field = message.field.add(name=tokens.identifier())
    field.label = types.LABEL_REPEATED if repeated else types.LABEL_OPTIONAL
    if type_name in _SCALARS:
        field.type = types.Type.Value(f"TYPE_{type_name.upper()}")
    elif all(_IDENTIFIER.fullmatch(part) for part in type_name.split(".")):
        field.type_name = type_name
    else:
        raise tokens.error(f"expected a type before {field.name}, got {type_name!r}")
    tokens.take("=")
    number = tokens.take()
    if not number.isdigit() or int(number) < 1:
        raise tokens.error(f"expected the number of field {field.name}, got {number!r}")
    if any(number == str(other.number) for other in message.field[:-1]):
        raise tokens.error(f"field {field.name} has the number {number} of another one")
    field.number = int(number)
    tokens.take(";")
    return field


def resolve_types(file: descriptor_pb2.FileDescriptorProto, pool: Any) -> None:
    """Gives every named type its full name and its kind, message or enum; looks outside the file in `pool`.

    Raises:
        KeyError: for a type that neither the file nor the pool knows.
    """
    types = descriptor_pb2.FieldDescriptorProto
    own = {message.name for message in file.message_type}
    for message in file.message_type:
        for field in message.field:
            if not field.type_name:
                continue
            if field.type_name in own:
                field.type_name = f".{file.package}.{field.type_name}"
                field.type = types.TYPE_MESSAGE
                continue
            try:
                pool.FindMessageTypeByName(field.type_name)
                field.type = types.TYPE_MESSAGE
            except KeyError:
                pool.FindEnumTypeByName(field.type_name)
                field.type = types.TYPE_ENUM
            field.type_name = f".{field.type_name}"
