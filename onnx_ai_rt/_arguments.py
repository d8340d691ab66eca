"""What callers pass, checked where it comes in: what is wrong is said in one sentence with place, expected and got."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

_MOST_LETTERS = 60


def described(value: object) -> str:
    """A value in a few words, for messages."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {list(value.shape)}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        text = repr(value)
        return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
    return f"an object of type {type(value).__name__}"


def integer(value: object, place: str, low: int | None = None, high: int = (1 << 63) - 1) -> int:
    """An int, or another type's integer; `low` and `high` are the ends of what is valid."""
    try:
        number = int(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{place}: expected an integer, got {described(value)}") from None
    if (low is not None and number < low) or number > high:
        expected = f"{low} or more" if low is not None and number < low else f"at most {high}"
        raise ValueError(f"{place}: expected {expected}, got {described(value)}")
    return number


def positive_float(value: object, place: str) -> float:
    """A number that is positive and finite as a float32."""
    dtype = np.asarray(value).dtype if isinstance(value, (int, float, np.generic, np.ndarray)) else None
    if dtype is None or np.ndim(value) != 0 or dtype.kind in "cmMSUT":  # type: ignore[arg-type]
        raise TypeError(f"{place}: expected a number, got {described(value)}")
    try:
        number = float(value)  # type: ignore[arg-type]
        with np.errstate(over="ignore", under="ignore"):
            single = np.float32(number)
    except OverflowError:
        single = np.float32(np.inf)
    if not (np.isfinite(single) and single > 0):
        raise ValueError(f"{place}: expected a positive finite float, got {described(value)}")
    return number


def byte_array(value: object, place: str) -> npt.NDArray[np.uint8]:
    """Bytes, or what has a buffer of them, as a rank-1 uint8 array of the same memory."""
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or value.ndim != 1:
            raise TypeError(
                f"{place}: expected bytes or a rank-1 uint8 array, got {value.dtype} of shape {list(value.shape)}"
            )
        return value
    try:
        if isinstance(value, np.generic):  # numbers have buffers too
            raise TypeError
        return np.frombuffer(value, np.uint8)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, BufferError):
        raise TypeError(f"{place}: expected bytes or a rank-1 uint8 array, got {described(value)}") from None


def items(value: object, place: str, expected: str) -> list[Any]:
    """The elements of what is a collection, and neither text nor one array."""
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, memoryview, np.ndarray)):
        return list(value)
    raise TypeError(f"{place}: expected {expected}, got {described(value)}")


def choice(value: object, place: str, names: Iterable[str]) -> str:
    """One of some names."""
    known = list(names)
    if isinstance(value, str) and value in known:
        return value
    error = ValueError if isinstance(value, str) else TypeError
    raise error(f"{place}: expected one of {', '.join(known)}, got {described(value)}")


def file_path(value: object, place: str) -> str:
    """A path as text."""
    try:
        path = os.fsdecode(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{place}: path: expected a path, got {described(value)}") from None
    if "\0" in path:
        raise ValueError(f"{place}: path: expected a path without zero characters, got {described(path)}")
    return path
