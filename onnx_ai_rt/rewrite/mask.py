"""Shows by computing it that what an Attention node lets its queries see is what PagedAttention can say.

A mask is judged by its values, not by the nodes that make it: they are computed for many pairs of past and new tokens,
also beyond every number that takes part in them, where a window or a limited buffer would show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from onnx_ai_rt.rewrite.evaluate import Array, Evaluator, NotComputable

# (past, new) tokens. Every model must give a mask for these.
_PAIRS = ((0, 1), (0, 2), (0, 5), (1, 1), (3, 1), (3, 2), (7, 4), (17, 3), (33, 1))
_BATCHES = (1, 2)

_HIDDEN = -1e4  # a finite bias of this or less leaves a probability of 0 beside a bias of 0
_FAR = 1 << 18  # how many past tokens are tried at most
_FAR_SQUARE = 1 << 12  # the same where the nodes make something of tokens x tokens


class NotExpressible(Exception):
    """PagedAttention has no attributes for what the node lets its queries see; the text says what that is."""


@dataclass(frozen=True)
class Visibility:
    """What PagedAttention is to be told."""

    is_causal: bool
    left_window_size: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """What a node says about visibility."""

    mask: str | None
    past_inside: bool
    """Whether the node itself has past inputs, so that its rows are offset by their length."""
    is_causal: bool
    left_window_size: int
    right_window_size: int


@dataclass(frozen=True)
class Sizes:
    """How the sizes of a model's inputs are named."""

    batch: frozenset[str]
    past: frozenset[str]
    new: frozenset[str]
    total: frozenset[str]
    """Past and new together."""
    other: Mapping[str, int]

    def at(self, batch: int, past: int, new: int) -> dict[str, int]:
        sizes = dict(self.other)
        known = ((self.batch, batch), (self.past, past), (self.new, new), (self.total, past + new))
        for names, value in known:
            sizes.update((name, value) for name in names)
        return sizes


def visibility(rule: Rule, evaluator: Evaluator, sizes: Sizes, ones: Collection[str]) -> Visibility:
    """Finds the attributes of PagedAttention that let every query see exactly what `rule` lets it see.

    Args:
        rule: of the node.
        evaluator: of the node's graph.
        sizes: how the sizes of its inputs are named.
        ones: graph inputs whose elements are all 1.

    Raises:
        NotExpressible: there are none, or the mask depends on data.
    """
    notes: dict[str, None] = {}
    seen = []
    for batch, past, new, required in _cases(rule, evaluator, sizes, ones):
        mask = np.ones((1, 1), bool)
        if rule.mask is not None:
            try:
                mask = _compute(rule.mask, evaluator, sizes.at(batch, past, new), ones)[rule.mask]
                mask = _as_bool(_fitting(mask, past, new), notes)
            except NotComputable as error:
                if required:
                    raise NotExpressible(f"its mask '{rule.mask}' is not known to be causal: {error}") from error
                continue  # the model itself cannot have that many tokens
            except _Misfit as error:
                if required:
                    raise NotExpressible(f"its mask '{rule.mask}' is not causal: {error}") from error
                continue
        seen.append((past, new, mask & _by_attributes(rule, past, new)))
    return _explain(rule, seen, tuple(notes))


class _Misfit(Exception):
    pass


def _compute(mask: str, evaluator: Evaluator, at: Mapping[str, int], ones: Collection[str]) -> dict[str, Array]:
    return evaluator.evaluate(mask, at, {name: evaluator.filled(name, at, 1) for name in ones})


def _cases(
    rule: Rule, evaluator: Evaluator, sizes: Sizes, ones: Collection[str]
) -> Iterator[tuple[int, int, int, bool]]:
    """(batch, past, new, whether the mask must be computable)."""
    for past, new in _PAIRS:
        for batch in _BATCHES:
            yield batch, past, new, True
    yield 1, 130, 2, False
    turns = {rule.left_window_size, rule.right_window_size}
    limit = _FAR
    if rule.mask is not None:
        turns |= evaluator.constants(rule.mask)
        past, new = _PAIRS[-1]
        largest = max(v.nbytes for v in _compute(rule.mask, evaluator, sizes.at(1, past, new), ones).values())
        limit = _FAR if largest < 64 * new * (past + new) else _FAR_SQUARE
    for turn in sorted(turns):
        if 1 < turn <= limit:
            yield 1, turn + 2, 3, False
            yield 1, turn - 1, 2, False
        elif limit < turn <= _FAR:
            raise NotExpressible(
                f"its mask '{rule.mask}' has the constant {turn}, and trying that many tokens takes too much memory"
            )


def _fitting(mask: Array, past: int, new: int) -> Array:
    """Checks that the last two sizes are those of queries and keys: then a misjudged input size cannot go unseen."""
    total = past + new
    if mask.ndim < 2 or mask.shape[-1] != total or mask.shape[-2] not in (1, new):
        raise _Misfit(f"for {past} past and {new} new tokens its shape is {list(mask.shape)}")
    return mask


def _as_bool(mask: Array, notes: dict[str, None]) -> Array:
    if mask.dtype == bool:
        return mask
    values = mask.astype(np.float64)
    zero, hidden = values == 0, values <= _HIDDEN
    if not (zero | hidden).all():
        other = values[~(zero | hidden)].flat[0]
        raise _Misfit(f"it adds {other:g} to a score")
    finite = values[hidden & np.isfinite(values)]
    if finite.size:
        notes[f"its mask adds {finite.max():g} instead of -inf to hide a key"] = None
    visible: Array = zero
    return visible


def _by_attributes(rule: Rule, past: int, new: int) -> Array:
    row = np.arange(new)[:, None] + (past if rule.past_inside else 0)
    key = np.arange(past + new)[None, :]
    visible = np.ones((new, past + new), bool)
    if rule.is_causal:
        visible &= key <= row
    if rule.left_window_size >= 0:
        visible &= key >= row - rule.left_window_size
    if rule.right_window_size >= 0:
        visible &= key <= row + rule.right_window_size
    return visible


def _explain(rule: Rule, seen: list[tuple[int, int, Array]], notes: tuple[str, ...]) -> Visibility:
    past, new, visible = max(seen, key=lambda case: case[0])
    first = int(np.argmax(visible[..., -1, :].reshape(-1, past + new)[0]))
    window = -1 if first == 0 else past + new - 1 - first
    for is_causal in (True, False):
        if all(_matches(case, is_causal, window) for case in seen):
            if window >= 0 and window != rule.left_window_size:
                notes += (f"its mask is a window: left_window_size {window}",)
            return Visibility(is_causal, window, notes)
    past, new, visible = next(case for case in seen if not _matches(case, True, window))
    what = f"its mask '{rule.mask}'" if rule.mask is not None else "what its attributes hide"
    if rule.mask is None and rule.is_causal and not rule.past_inside:
        raise NotExpressible(
            "is_causal=1 without past inputs counts queries from the first key on, not behind the past"
        )
    raise NotExpressible(
        f"{what} is not causal: for {past} past and {new} new tokens the rows see "
        f"{_spelled(visible.reshape(-1, *visible.shape[-2:])[0])}"
    )


def _matches(case: tuple[int, int, Array], is_causal: bool, window: int) -> bool:
    past, new, visible = case
    expected = _by_attributes(Rule(None, True, is_causal, window, -1), past, new)
    return bool((visible == expected).all())


def _spelled(visible: Array) -> str:
    """Which keys each row sees, for a message."""
    rows = []
    for row in visible[:3]:
        keys = np.flatnonzero(row)
        consecutive = keys.size and keys[-1] - keys[0] + 1 == keys.size
        rows.append(f"keys {keys[0]}..{keys[-1]}" if consecutive else f"{keys.size} keys")
    return ", ".join(rows) + (", ..." if len(visible) > 3 else "")
