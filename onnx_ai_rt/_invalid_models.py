"""Models that are not valid: what is wrong with them in onnx's words, instead of an error from where it mattered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx


@contextmanager
def explained(model: onnx.ModelProto, place: str) -> Iterator[None]:
    """Code that reads the model and takes it to be valid: checking is slow, and refuses some that run all the same.

    Raises:
        ValueError: the code failed, and onnx says that the model is not valid. Else the error is what it was.
    """
    try:
        yield
    except Exception as error:
        if str(error).startswith(place):  # a sentence of its own
            raise
        reason = _reason_against(model)
        if not reason:
            raise
        raise ValueError(f"{place}: model: expected a valid model, got one of which onnx says: {reason}") from error


def _reason_against(model: onnx.ModelProto) -> str:
    """One line; empty for a valid model, and for one that cannot be checked."""
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        return " ".join(str(error).split())
    except (TypeError, ValueError) as error:  # a text that is none, a model beyond what protobuf serializes
        return str(error)
    return ""
