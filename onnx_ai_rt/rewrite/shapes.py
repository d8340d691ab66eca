"""Nodes that a conversion adds, and what becomes of the shapes of past and present tensors."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnx_ai_rt.rewrite.graph import Dim, GraphView, attributes, is_onnx
from onnx_ai_rt.rewrite.layers import Layer, NotUnderstood, Side


@dataclass(frozen=True)
class Part:
    """One size in the result of a Shape node."""

    constant: int = 0
    value: str = ""
    """The size is that of this value's `axis` instead."""
    axis: int = 0
    past: bool = False
    """The cache's tokens are added."""


@dataclass(frozen=True)
class ShapeNode:
    """A node Shape over a past or present tensor, and what it gave."""

    node: int
    parts: tuple[Part, ...]

    @property
    def needs_length(self) -> bool:
        return any(part.past for part in self.parts)


def plan_shapes(view: GraphView, layer: Layer, removed: Set[str]) -> list[ShapeNode]:
    """Where the shapes of a layer's past and present come from once these are gone.

    Args:
        view: the graph.
        layer: one of its layers.
        removed: graph inputs that will be gone.

    Raises:
        NotUnderstood: for a size that only a tensor which goes has.
    """
    found = []
    for side in layer.sides:
        for index in view.readers(side.past):
            if is_onnx(view.nodes[index], "Shape"):
                dims = view.shape(side.past) or ()
                parts = [
                    Part(past=True) if axis == layer.past_axis else _remaining(view, dims, axis, side.past, removed)
                    for axis in _axes(view.nodes[index], len(dims))
                ]
                found.append(ShapeNode(index, tuple(parts)))
        for index in view.readers(side.present[0]):
            if is_onnx(view.nodes[index], "Shape"):
                axes = _axes(view.nodes[index], 4 if layer.rule.past_inside else layer.rank)
                found.append(ShapeNode(index, tuple(_of_present(view, layer, side, axis) for axis in axes)))
    return found


def _axes(node: onnx.NodeProto, rank: int) -> range:
    options = attributes(node)
    return range(rank)[slice(options.get("start", 0), options.get("end"))]


def _remaining(view: GraphView, dims: tuple[Dim, ...], axis: int, past: str, removed: Set[str]) -> Part:
    dim = dims[axis]
    if isinstance(dim, int):
        return Part(constant=dim)
    for name in view.inputs:
        shape = view.shape(name)
        if name not in removed and shape is not None and dim in shape:
            return Part(value=name, axis=shape.index(dim))
    raise NotUnderstood(f"the graph takes size {axis} of '{past}', and no input that stays has a size of that name")


def _of_present(view: GraphView, layer: Layer, side: Side, axis: int) -> Part:
    new = side.new
    if axis == layer.past_axis:
        return Part(value=new, axis=layer.rank - 2, past=True)
    if layer.rank == 3 and layer.rule.past_inside:
        if axis == 1:
            return Part(constant=layer.kv_heads)
        if axis == 3:
            width = (view.shape(side.past) or (None,) * 4)[3]
            if not isinstance(width, int):
                raise NotUnderstood(f"the graph takes size 3 of '{side.present[0]}', and '{side.past}' has it unnamed")
            return Part(constant=width)
    return Part(value=new, axis=axis)


class NewNodes:
    """Makes nodes with names that the graph does not have."""

    def __init__(self, view: GraphView) -> None:
        self._taken = {*view.producer, *view.consumers, *view.inputs, *view.initializers, *view.outputs}
        self.initializers: list[onnx.TensorProto] = []
        self._constants: dict[tuple[int, ...], str] = {}

    def name(self, wish: str) -> str:
        """A name for a value: the wished one, or that with a number."""
        name, count = wish, 1
        while name in self._taken:
            count += 1
            name = f"{wish}_{count}"
        self._taken.add(name)
        return name

    def constant(self, *values: int) -> str:
        """An initializer of rank 1 and type int64."""
        if values not in self._constants:
            name = self.name("sizes_" + "_".join(str(value).replace("-", "minus_") for value in values))
            self.initializers.append(numpy_helper.from_array(np.array(values, np.int64), name))
            self._constants[values] = name
        return self._constants[values]

    def length(self, cache: str, result: str) -> list[onnx.NodeProto]:
        """The cache's number of tokens, of shape [1]."""
        scalar = self.name(f"{result}_scalar")
        return [
            helper.make_node("PagedCacheLength", [cache], [scalar], name=scalar, domain="ai.rt"),
            helper.make_node("Reshape", [scalar, self.constant(1)], [result], name=result),
        ]

    def shape(self, shape: ShapeNode, result: str, length: str) -> list[onnx.NodeProto]:
        """What the node Shape gave."""
        if not shape.parts:
            return [helper.make_node("Identity", [self.constant()], [result])]
        nodes, sizes = [], []
        for part in shape.parts:
            size = length if part.past and not part.value else ""
            if part.value:
                size = self.name(f"{part.value}_size_{part.axis}")
                nodes.append(
                    helper.make_node("Shape", [part.value], [size], name=size, start=part.axis, end=part.axis + 1)
                )
                if part.past:
                    total = self.name(f"{part.value}_total_{part.axis}")
                    nodes.append(helper.make_node("Add", [size, length], [total], name=total))
                    size = total
            sizes.append(size or self.constant(part.constant))
        if len(sizes) == 1:
            nodes.append(helper.make_node("Identity", sizes, [result], name=result))
        else:
            nodes.append(helper.make_node("Concat", sizes, [result], name=result, axis=0))
        return nodes

    def split_heads(self, value: str, heads: int) -> tuple[list[onnx.NodeProto], str]:
        """(B, S, heads * width) to (B, heads, S, width)."""
        split, result = self.name(f"{value}_split"), self.name(f"{value}_heads")
        return [
            helper.make_node("Reshape", [value, self.constant(0, 0, heads, -1)], [split], name=split),
            helper.make_node("Transpose", [split], [result], name=result, perm=[0, 2, 1, 3]),
        ], result

    def join_heads(self, value: str, result: str) -> list[onnx.NodeProto]:
        """(B, heads, S, width) to (B, S, heads * width)."""
        turned = self.name(f"{value}_turned")
        return [
            helper.make_node("Transpose", [value], [turned], name=turned, perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [turned, self.constant(0, 0, -1)], [result], name=result),
        ]
