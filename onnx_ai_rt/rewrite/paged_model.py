"""What a conversion gives: the model, and what happened to each attention node."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import onnx

from onnx_ai_rt._arguments import described

METADATA_KEY = "onnx_ai_rt.paged_caches"


@dataclass(frozen=True)
class CacheNames:
    """The names that one layer's cache has in a converted model."""

    past: str
    """Input: the serialized cache, uint8."""
    appended: str = ""
    """Output: the serialized new blocks alone; empty where the model does not give it."""
    present: str = ""
    """Output: past and appended; empty where the model does not give it."""


@dataclass(frozen=True)
class NodeRewrite:
    """One attention node."""

    node: str
    """Its name, or its first output's where it has none."""
    operator: str
    """With its domain: ``"ai.onnx::Attention"``."""
    place: str
    """``"graph"``, a path of subgraphs below it, or ``"function NAME"``."""
    cache: CacheNames | None
    """Of the layer; None where the node was left alone."""
    reasons: tuple[str, ...]
    """Why it was left; or what to know where it was changed."""

    @property
    def changed(self) -> bool:
        return self.cache is not None


@dataclass(frozen=True)
class PagedModel:
    """The result of `onnx_ai_rt.to_paged`. Its text is a report."""

    model: onnx.ModelProto
    """A new model; equal to the given one where no node was changed."""
    nodes: tuple[NodeRewrite, ...]
    """All attention nodes, in the order of the graph."""

    @property
    def caches(self) -> tuple[CacheNames, ...]:
        """One a converted layer, in the order of the graph."""
        return tuple(node.cache for node in self.nodes if node.cache is not None)

    @property
    def changed(self) -> tuple[NodeRewrite, ...]:
        return tuple(node for node in self.nodes if node.changed)

    @property
    def left(self) -> tuple[NodeRewrite, ...]:
        return tuple(node for node in self.nodes if not node.changed)

    def __str__(self) -> str:
        lines = []
        for node in self.nodes:
            lines.append(f"{'changed' if node.changed else 'LEFT':<9}{node.operator}  '{node.node}' in {node.place}")
            if node.cache is not None:
                outputs = " and ".join(name for name in (node.cache.appended, node.cache.present) if name)
                lines.append(f"{'':<9}cache '{node.cache.past}' in, '{outputs}' out")
            lines += [f"{'':<9}{reason}" for reason in node.reasons]
        count = len(self.changed)
        lines.append(
            f"{count} of {len(self.nodes)} attention nodes changed"
            if self.nodes
            else "the model has no attention nodes"
        )
        return "\n".join(lines)


def write_cache_names(model: onnx.ModelProto, caches: list[CacheNames]) -> None:
    """Notes in the model's metadata which inputs and outputs are caches."""
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, json.dumps([asdict(names) for names in caches])


def read_cache_names(metadata: dict[str, str]) -> tuple[CacheNames, ...]:
    """Cache names from a model's metadata.

    Raises:
        ValueError: the model was not made by `onnx_ai_rt.to_paged`.
    """
    if METADATA_KEY not in metadata:
        raise ValueError(f"expected a model made by onnx_ai_rt.to_paged, got one without metadata '{METADATA_KEY}'")
    try:
        return tuple(CacheNames(**names) for names in json.loads(metadata[METADATA_KEY]))
    except (ValueError, TypeError):
        text = described(metadata[METADATA_KEY])
        raise ValueError(f"metadata '{METADATA_KEY}': expected names of caches as JSON, got {text}") from None
