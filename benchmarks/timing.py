"""Contenders in turns: whatever else the machine does hits them alike, and ratios are taken within a round."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.contender import Contender


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    rounds: turns of each contender. turn: seconds of one turn, in which a fast contender runs many times.
    patience: seconds after which no new round begins, once there are `least`. pause: the longest wait before a turn.
    """

    rounds: int
    turn: float
    patience: float
    pause: float = 0.1
    least: int = 3


QUICK = Effort(rounds=7, turn=0.02, patience=3.0)
FULL = Effort(rounds=21, turn=0.1, patience=25.0)
SMOKE = Effort(rounds=2, turn=0.0, patience=0.0, pause=0.0)

# Threads of the last turn's pool spin for a while before they sleep: no turn begins before this process is idle.
_PAUSE = 0.002
# A run that is longer than this needs no other one to warm caches up for it.
_LONG = 0.02


@dataclass
class Samples:
    """Milliseconds of one run of a contender, one number from each round."""

    contender: Contender
    milliseconds: list[float]

    @property
    def median(self) -> float:
        return float(np.median(self.milliseconds))

    @property
    def quartiles(self) -> tuple[float, float]:
        low, high = np.percentile(self.milliseconds, [25, 75])
        return float(low), float(high)

    def ratio_to(self, other: Samples) -> tuple[float, float, float]:
        """Median and quartiles of the ratios of the rounds."""
        median, low, high = np.percentile(np.divide(self.milliseconds, other.milliseconds), [50, 25, 75])
        return float(median), float(low), float(high)


def measure(contenders: Sequence[Contender], effort: Effort) -> list[Samples]:
    """Times all contenders, in rounds that alternate their order."""
    samples = [Samples(contender, []) for contender in contenders]
    runs = [_runs_in_a_turn(contender, effort.turn) for contender in contenders]
    end = time.perf_counter() + effort.patience
    gc.collect()
    gc.disable()
    try:
        for done in range(effort.rounds):
            if done >= min(effort.least, effort.rounds) and time.perf_counter() > end:
                break
            order = range(len(contenders)) if done % 2 == 0 else reversed(range(len(contenders)))
            for i in order:
                samples[i].milliseconds.append(_turn(contenders[i], runs[i], effort.pause))
    finally:
        gc.enable()
    return samples


def _runs_in_a_turn(contender: Contender, turn: float) -> int:
    contender.before()
    first = _seconds(contender)
    return 1 if first > turn else max(1, min(1000, int(turn / max(_seconds(contender), 1e-7))))


def _turn(contender: Contender, runs: int, pause: float) -> float:
    """Milliseconds of a run: the median of the turn, after a run that brings its data into the caches."""
    contender.before()
    _wait_until_idle(pause)
    first = _seconds(contender)
    times = [_seconds(contender) for _ in range(runs if runs > 1 or first < _LONG else 0)]
    return float(np.median(times or [first])) * 1e3


def _seconds(contender: Contender) -> float:
    start = time.perf_counter()
    own = contender.run()
    return time.perf_counter() - start if own is None else own


def _wait_until_idle(longest: float) -> None:
    for _ in range(int(longest / _PAUSE)):
        busy = time.process_time()
        time.sleep(_PAUSE)
        if time.process_time() - busy < _PAUSE / 10:
            return
