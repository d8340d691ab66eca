"""In which format a converted model appends its pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import TensorProto, helper

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
        if self.format not in FORMATS:
            raise ValueError(f"to_paged: {self.side}_format: expected one of {', '.join(FORMATS)}, got {self.format!r}")
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
        scale = 1.0 if scale is None or not format.is_affine else float(scale)
        zero_point = 0 if zero_point is None or not format.is_affine else int(zero_point)
        if not 0 < scale < float("inf"):
            raise ValueError(f"to_paged: {self.side}_scale: expected positive finite values, got {scale:g}")
        if format.is_affine and not format.low <= zero_point <= format.high:
            raise ValueError(
                f"to_paged: {self.side}_zero_point: expected {format.low} to {format.high} for {format.name}, "
                f"got {zero_point}"
            )
        if format.is_affine:
            import numpy as np

            data = pack_codes(np.array([zero_point]), format.bits)
        else:
            data = bytes(format.bits // 8)
        return [
            helper.make_tensor(names[0], TensorProto.FLOAT, [], [scale]),
            TensorProto(name=names[1], data_type=format.data_type, raw_data=data),
        ]


def _pick(values: float | Sequence[float] | None, layer: int) -> float | None:
    return values[layer] if isinstance(values, Sequence) else values
