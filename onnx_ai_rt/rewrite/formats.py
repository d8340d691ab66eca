"""In which format a converted model appends its pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from onnx import TensorProto, helper

from onnx_ai_rt._arguments import choice, integer, positive_float
from onnx_ai_rt.reference.quantize import FORMATS, pack_codes


@dataclass(frozen=True)
class NewPages:
    """Format, scales and zero points of one side's new pages."""

    side: str
    """``"key"`` or ``"value"``."""
    format: str | None = None
    """A name of `onnx_ai_rt.reference.quantize.FORMATS`; None: the model's own type, without inputs."""
    scale: float | Sequence[float] | None = None
    zero_point: int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.format is None:
            for name in ("scale", "zero_point"):
                if getattr(self, name) is not None:
                    raise ValueError(f"to_paged: {self.side}_{name} needs {self.side}_format")
            return
        choice(self.format, f"to_paged: {self.side}_format", FORMATS)
        object.__setattr__(self, "scale", _each(positive_float, self.scale, f"to_paged: {self.side}_scale"))
        object.__setattr__(self, "zero_point", _each(integer, self.zero_point, f"to_paged: {self.side}_zero_point"))
        if self.zero_point is not None and self.scale is None:
            raise ValueError(f"to_paged: {self.side}_zero_point needs {self.side}_scale")

    def check_layers(self, count: int) -> None:
        """Checks that sequences have one element a converted layer."""
        for name in ("scale", "zero_point"):
            values = getattr(self, name)
            if isinstance(values, Sequence) and len(values) != count:
                raise ValueError(
                    f"to_paged: {self.side}_{name}: expected one value or {count}, one a converted layer, "
                    f"got {len(values)}"
                )

    def constants(self, layer: int, names: tuple[str, str]) -> list[TensorProto] | None:
        """Initializers of scale and zero point of a layer; None where they are to be inputs of the graph."""
        assert self.format is not None
        format = FORMATS[self.format]
        scale, zero_point = _pick(self.scale, layer), _pick(self.zero_point, layer)
        if format.is_affine and scale is None:
            return None
        scale = 1.0 if scale is None or not format.is_affine else scale
        zero_point = 0 if zero_point is None or not format.is_affine else zero_point
        if format.is_affine and not format.low <= zero_point <= format.high:
            raise ValueError(
                f"to_paged: {self.side}_zero_point: expected {format.low} to {format.high} for {format.name}, "
                f"got {zero_point}"
            )
        data = pack_codes(np.array([zero_point]), format.bits) if format.is_affine else bytes(format.bits // 8)
        return [
            helper.make_tensor(names[0], TensorProto.FLOAT, [], [scale]),
            TensorProto(name=names[1], data_type=format.data_type, raw_data=data),
        ]


_Number = TypeVar("_Number", int, float)


def _each(check: Callable[[object, str], _Number], values: object, place: str) -> _Number | list[_Number] | None:
    """One number, or one a layer, each checked."""
    if values is None:
        return None
    if isinstance(values, np.ndarray) and values.ndim == 1:
        values = list(values)
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes, bytearray)):
        return [check(value, place) for value in values]
    return check(values, place)


def _pick(values: _Number | Sequence[_Number] | None, layer: int) -> _Number | None:
    return values[layer] if isinstance(values, Sequence) else values
