"""A line on the terminal where a person would otherwise wait."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

_T = TypeVar("_T")
_QUIET_SECONDS = 0.5
_STEP_SECONDS = 0.1


def progress(items: Iterable[_T], label: str, total: int | None = None) -> Iterator[_T]:
    """Passes the items on; from half a second on it shows how many there were, when stderr is a terminal.

    Args:
        items: any iterable.
        label: what is being done, as "quantizing pages".
        total: how many items there are, for those without a length.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    next_time = time.monotonic() + _QUIET_SECONDS
    drawn = False
    try:
        for count, item in enumerate(items):
            now = time.monotonic()
            if now >= next_time:
                done = f"{count} of {total} ({100 * count // max(total, 1)} %)" if total is not None else str(count)
                print(f"\r{label}: {done}", end="", file=sys.stderr, flush=True)
                drawn, next_time = True, now + _STEP_SECONDS
            yield item
    finally:
        if drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
