"""Computes one value of a graph from the sizes of its inputs alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnx_ai_rt.rewrite.graph import GraphView, attributes, is_onnx, read_names, size_of

Array = npt.NDArray[Any]
_MOST_LETTERS = 200  # of a reason that is somebody else's


class NotComputable(Exception):
    """The value does not follow from the sizes; the text says why."""


@dataclass(frozen=True)
class _Slice:
    """The nodes that compute a value, up to where shapes are taken or values are given."""

    nodes: tuple[int, ...]
    shapes: tuple[int, ...]  # nodes Shape and Size: their results are computed from the sizes
    inputs: tuple[str, ...]  # graph inputs of which the values are read
    initializers: tuple[str, ...]


class Evaluator:
    """Evaluates values of a graph with onnx's reference evaluator."""

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self._slices: dict[tuple[str, frozenset[str]], _Slice] = {}
        self._programs: dict[tuple[str, frozenset[str]], ReferenceEvaluator] = {}

    def evaluate(
        self, target: str, sizes: Mapping[str, int], values: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """The value `target` and those on the way to it, by name.

        Args:
            target: name of a value of the main graph.
            sizes: of the names in the shapes of the graph's inputs.
            values: of the graph whose values are given, inputs or others.

        Raises:
            NotComputable: it depends on the data of a graph input that is not in `values`, or an operator fails.
        """
        values = values or {}
        if target in values:
            return {target: np.asarray(values[target])}
        part = self._slice(target, frozenset(values))
        for name in part.inputs:
            if name not in values:
                raise NotComputable(f"it depends on the values of input '{name}'")
        return self._run(target, part, sizes, values)

    def constants(self, target: str) -> set[int]:
        """The positive whole numbers in the constants that take part in `target`, and the sizes of those constants."""
        found: set[int] = set()
        part = self._slice(target, frozenset())
        arrays = [onnx.numpy_helper.to_array(self._view.initializers[name]) for name in part.initializers]
        for index in part.nodes:
            node = self._view.nodes[index]
            for value in attributes(node).values():
                if isinstance(value, TensorProto):
                    arrays.append(onnx.numpy_helper.to_array(value))
                elif isinstance(value, int | float | list):
                    arrays.append(np.asarray(value))
        for array in arrays:
            found.update(array.shape)
            if array.size <= 4096 and array.dtype.kind in "iuf":
                whole = array[(array > 0) & (array < 1 << 40)].astype(np.float64)
                found.update(int(number) for number in whole[whole == np.rint(whole)])
        return found - {0}

    def _run(
        self, target: str, part: _Slice, sizes: Mapping[str, int], values: Mapping[str, Array]
    ) -> dict[str, Array]:
        feeds = {name: np.asarray(value) for name, value in values.items()}
        for index in part.shapes:
            feeds[self._view.nodes[index].output[0]] = self._shape_result(index, sizes, values)
        if target in feeds:
            return {target: feeds[target]}
        try:
            program = self._program(target, part, frozenset(values))
            needed = set(program.input_names)
            with np.errstate(all="ignore"):
                results = program.run(
                    None, {name: value for name, value in feeds.items() if name in needed}, intermediate=True
                )
        except Exception as error:  # whatever numpy, an operator, or one that the reference evaluator lacks raises
            reason = " ".join(str(error).split()) or type(error).__name__
            raise NotComputable(f"computing it fails: {reason[:_MOST_LETTERS]}") from error
        assert isinstance(results, dict)
        return {
            name: np.asarray(value) for name, value in results.items() if isinstance(value, np.ndarray | np.generic)
        }

    def _slice(self, target: str, given: frozenset[str]) -> _Slice:
        key = (target, given)
        if key not in self._slices:
            self._slices[key] = self._make_slice(target, given)
        return self._slices[key]

    def _make_slice(self, target: str, given: frozenset[str]) -> _Slice:
        view = self._view
        nodes, shapes = set[int](), set[int]()
        inputs, initializers = dict[str, None](), dict[str, None]()
        pending, seen = [target], set[str]()
        while pending:
            name = pending.pop()
            if name in seen or name in given:
                continue
            seen.add(name)
            if name in view.initializers:
                initializers[name] = None
            elif name in view.producer:
                index = view.producer[name]
                if is_onnx(view.nodes[index], "Shape", "Size"):
                    shapes.add(index)
                else:
                    nodes.add(index)
                    pending += read_names(view.nodes[index])
            else:
                inputs[name] = None
        return _Slice(tuple(sorted(nodes)), tuple(sorted(shapes)), tuple(inputs), tuple(initializers))

    def _program(self, target: str, part: _Slice, given: frozenset[str]) -> ReferenceEvaluator:
        from onnx_ai_rt.reference.ops import reference_ops

        key = (target, given)
        if key not in self._programs:
            view = self._view
            feeds = [*given, *(view.nodes[index].output[0] for index in part.shapes)]
            model = helper.make_model(
                helper.make_graph(
                    [view.nodes[index] for index in part.nodes],
                    "part",
                    [onnx.ValueInfoProto(name=name) for name in feeds],
                    [onnx.ValueInfoProto(name=target)],
                    [view.initializers[name] for name in part.initializers],
                ),
                opset_imports=view.model.opset_import,
                functions=view.model.functions,
                ir_version=view.model.ir_version,
            )
            self._programs[key] = ReferenceEvaluator(model, new_ops=reference_ops)
        return self._programs[key]

    def _shape_result(self, index: int, sizes: Mapping[str, int], values: Mapping[str, Array]) -> Array:
        """What a node Shape or Size gives."""
        node = self._view.nodes[index]
        name = node.input[0]
        chosen = slice(None)
        if node.op_type == "Shape":
            options = attributes(node)
            chosen = slice(options.get("start", 0), options.get("end"))
        dims = self._known_shape(name, sizes, values)
        if dims is None or any(dim is None for dim in dims[chosen]):
            # What inference does not know, running the nodes on zeros tells.
            zeros = {key: self.filled(key, sizes, 0) for key in self._slice(name, frozenset(values)).inputs}
            dims = list(self.evaluate(name, sizes, {**zeros, **values})[name].shape)
        if node.op_type == "Size":
            return np.array(np.prod(np.array(dims, np.int64)), np.int64)
        return np.array(dims[chosen], np.int64)

    def _known_shape(self, name: str, sizes: Mapping[str, int], values: Mapping[str, Array]) -> list[int | None] | None:
        if name in values:
            return list(np.shape(values[name]))
        shape = self._view.shape(name)
        return None if shape is None else [size_of(dim, sizes) for dim in shape]

    def filled(self, name: str, sizes: Mapping[str, int], value: int) -> Array:
        """An array for a graph input, with the same number everywhere. Raises NotComputable for an unknown shape."""
        shape = self._known_shape(name, sizes, {})
        if shape is None or any(dim is None for dim in shape):
            raise NotComputable(f"the shape of input '{name}' is not known")
        dtype = helper.tensor_dtype_to_np_dtype(self._view.elem_type(name))
        return np.full([int(dim or 0) for dim in shape], value, dtype)
