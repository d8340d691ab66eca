"""The arguments of `PagedKVCache` that say something of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx_ai_rt._arguments import described, integer, items
from onnx_ai_rt.decode.storage import Bytes
from onnx_ai_rt.rewrite.paged_model import CacheNames

_MOST_LAYERS = 1 << 16


def layer_names(layers: object) -> tuple[CacheNames, ...]:
    """The names of that many layers, or those given."""
    place = "PagedKVCache: layers"
    if hasattr(layers, "__index__"):
        count = integer(layers, place, 1, _MOST_LAYERS)
        return tuple(CacheNames(f"cache_{i}", f"appended_{i}") for i in range(count))
    names = items(layers, place, "a number, or a list of CacheNames")
    if not names:
        raise ValueError(f"{place}: expected one layer or more, got none")
    for name in names:
        if not isinstance(name, CacheNames):
            raise TypeError(f"{place}: expected a number, or a list of CacheNames, got {described(name)} in it")
    return tuple(names)


def new_pages(new: object, layers: Sequence[CacheNames]) -> list[Bytes]:
    """What a step gave, in the order of the layers."""
    place = "PagedKVCache.append"
    if isinstance(new, Mapping):
        for names in layers:
            if names.appended not in new:
                expected = f"the output '{names.appended}'" if names.appended else "a model with outputs 'appended'"
                given = ", ".join(f"'{name}'" for name in new) or "no outputs"
                raise ValueError(f"{place}: expected {expected}, got {given}")
        return [new[names.appended] for names in layers]
    arrays = items(new, place, "a list of one array a layer, or arrays by output name")
    if len(arrays) != len(layers):
        raise ValueError(f"{place}: expected the new pages of {len(layers)} layers, got {len(arrays)}")
    return arrays
