"""One implementation of one row, ready to be timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt


class Unavailable(Exception):
    """This implementation cannot do this row; the text says why."""


def nothing() -> None:
    """What most contenders do before their turn."""


@dataclass
class Contender:
    """run() does the work once. before() is called ahead of each turn, outside the measured time.

    run may give the seconds that count, where it measures itself. output() gives the last run's Y as (B,Hq,S,Dv), where
    there is one. tolerance bounds its relative error: a contender that computes something else has no time to show.
    """

    name: str
    threads: int
    run: Callable[[], float | None]
    before: Callable[[], object] = nothing
    output: Callable[[], npt.NDArray[Any]] | None = None
    tolerance: float = 0.0
    target: str = ""  # instruction set, of ours


TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2, "INT8": 5e-2, "INT4": 0.6, "BFLOAT16": 4e-2}
