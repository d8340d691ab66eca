"""What a rewrite asks of a graph: who makes a value, who reads it, its type and shape."""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import onnx
from onnx import helper

Dim = int | str | None
"""A size, an expression over the names of sizes, or unknown."""

_KEEP_BYTES = 1 << 16  # initializers up to this size take part in shape inference: reshapes and axes, not weights


class GraphView:
    """Read access to the main graph of a model. It is made anew after a change."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        graph = model.graph
        self.nodes = list(graph.node)
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = {value.name: value for value in graph.input if value.name not in self.initializers}
        self.outputs = {value.name for value in graph.output}
        self.producer: dict[str, int] = {}
        self.consumers: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            self.producer.update((name, index) for name in node.output if name)
            for name in dict.fromkeys(read_names(node)):
                self.consumers.setdefault(name, []).append(index)
        values = [*_infer_shapes(model), *graph.output, *graph.input]
        self._types = {value.name: value.type.tensor_type for value in values if value.type.HasField("tensor_type")}

    def elem_type(self, name: str) -> int:
        """``onnx.TensorProto.DataType`` of a value; 0 where it is not known."""
        if name in self.initializers:
            return int(self.initializers[name].data_type)
        return int(self._types[name].elem_type) if name in self._types else 0

    def shape(self, name: str) -> tuple[Dim, ...] | None:
        """Sizes of a value as far as they are known without running; None for an unknown rank."""
        if name in self.initializers:
            return tuple(self.initializers[name].dims)
        if name not in self._types or not self._types[name].HasField("shape"):
            return None
        dims: list[Dim] = []
        for axis, dim in enumerate(self._types[name].shape.dim):
            if dim.HasField("dim_value"):
                dims.append(int(dim.dim_value))
            elif dim.dim_param:
                dims.append(dim.dim_param)
            else:
                # A name of its own lets an input's unnamed size be chosen like a named one.
                dims.append(unnamed_size(name, axis) if name in self.inputs else None)
        return tuple(dims)

    def source(self, name: str) -> str:
        """The value itself where `name` is only a copy of it by Identity."""
        while name in self.producer and self.nodes[self.producer[name]].op_type == "Identity":
            name = self.nodes[self.producer[name]].input[0]
        return name

    def readers(self, name: str) -> list[int]:
        """The nodes that read a value, also through Identity (which do not count themselves)."""
        found = []
        for index in self.consumers.get(name, []):
            if self.nodes[index].op_type == "Identity":
                found += self.readers(self.nodes[index].output[0])
            else:
                found.append(index)
        return found

    def copies(self, name: str) -> list[str]:
        """The value and all that are copies of it by Identity."""
        found = [name]
        for index in self.consumers.get(name, []):
            if self.nodes[index].op_type == "Identity":
                found += self.copies(self.nodes[index].output[0])
        return found

    def label(self, index: int) -> str:
        return node_label(self.nodes[index])


def node_label(node: onnx.NodeProto) -> str:
    """The node's name, or its first output's where it has none."""
    return node.name or next((output for output in node.output if output), "")


def unnamed_size(name: str, axis: int) -> str:
    return f"{name}[{axis}]"


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes."""
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def read_names(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a node reads: its inputs, and what its subgraphs take from outside."""
    yield from (name for name in node.input if name)
    for graph in subgraphs(node):
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        own.update(name for inner in graph.node for name in inner.output)
        for inner in graph.node:
            yield from (name for name in read_names(inner) if name not in own)
        yield from (value.name for value in graph.output if value.name not in own)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def is_onnx(node: onnx.NodeProto, *op_types: str) -> bool:
    """Whether it is one of these operators of ONNX's own domain."""
    return node.domain in ("", "ai.onnx") and node.op_type in op_types


def remove_dead(model: onnx.ModelProto, keep_inputs: Set[str] | None = None) -> None:
    """Removes, in place, nodes and initializers that no output needs, and what was known about their values.

    Args:
        model: its main graph is changed.
        keep_inputs: graph inputs to keep although nothing reads them; all by default.
    """
    graph = model.graph
    needed = {value.name for value in graph.output}
    made = set[str]()

    def is_needed(node: onnx.NodeProto) -> bool:
        if needed.isdisjoint(node.output):
            return False
        needed.update(read_names(node))
        made.update(node.output)
        return True

    _keep(graph.node, is_needed)
    _keep(graph.initializer, lambda tensor: tensor.name in needed)
    _keep(graph.sparse_initializer, lambda tensor: tensor.values.name in needed)
    if keep_inputs is not None:
        _keep(graph.input, lambda value: value.name in needed or value.name in keep_inputs)
    _keep(graph.value_info, lambda value: value.name in made)


def _keep(field: Any, wanted: Callable[[Any], bool]) -> None:
    """Deletes elements in place (weights are large), from the last to the first: consumers come before producers."""
    for index in reversed(range(len(field))):
        if not wanted(field[index]):
            del field[index]


def replace_all(field: Any, values: Sequence[Any]) -> None:
    """Gives a repeated field of messages these values, which may be its own."""
    copies = [type(value).FromString(value.SerializeToString()) for value in values]
    del field[:]
    field.extend(copies)


def size_of(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    """The number that a size stands for: names from `sizes`, and expressions of + - * // over them."""
    if not isinstance(dim, str):
        return dim
    if dim in sizes:
        return sizes[dim]
    try:
        return _evaluate(ast.parse(dim, mode="eval").body, sizes)
    except (SyntaxError, KeyError, ValueError, ZeroDivisionError):
        return None


_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def _evaluate(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATIONS:
        return int(_OPERATIONS[type(tree.op)](_evaluate(tree.left, sizes), _evaluate(tree.right, sizes)))
    if isinstance(tree, ast.Name):
        return sizes[tree.id]
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return tree.value
    raise ValueError


def _infer_shapes(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """What onnx infers about the values of the main graph.

    Weights are given by type and shape alone: inference copies the model and takes no more than 2 GiB.
    """
    from onnx_ai_rt.schemas import DOMAIN, register_schemas

    if any(node.domain == DOMAIN for node in model.graph.node):
        register_schemas()
    light = onnx.ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = light.graph
    graph.name = model.graph.name or "graph"
    for field in ("node", "input", "output", "value_info"):
        getattr(graph, field).extend(getattr(model.graph, field))
    given = {value.name for value in graph.input}
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _KEEP_BYTES and tensor.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in given:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    # Where inference fails, what the model says about itself is all that is known.
    with contextlib.suppress(onnx.shape_inference.InferenceError):
        light = onnx.shape_inference.infer_shapes(light, data_prop=True)
    return list(light.graph.value_info)
