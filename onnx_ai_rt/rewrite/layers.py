"""Finds the Attention nodes whose past and present can become a paged cache."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from onnx_ai_rt.rewrite.evaluate import Array, Evaluator, NotComputable
from onnx_ai_rt.rewrite.graph import Dim, GraphView, attributes, is_onnx, size_of, unnamed_size
from onnx_ai_rt.rewrite.mask import Rule, Sizes

_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")


class NotUnderstood(Exception):
    """The node stays as it is; the text says why."""


@dataclass(frozen=True)
class Side:
    """The keys or the values of a layer."""

    past: str
    """Graph input."""
    new: str
    """The new tokens' keys or values."""
    present: tuple[str, ...]
    """Names of past and new together: the first is made by a node, the others are copies by Identity."""
    used: str
    """What Attention reads: the present, or its heads repeated for the query heads."""


@dataclass(frozen=True)
class Layer:
    """One Attention node with its past and present."""

    node: int
    key: Side
    value: Side
    rule: Rule
    rank: int
    """Of Q, K, V and, where it is no input of the node, of past: 4, or 3 with heads and width in one axis."""
    query_heads: int
    kv_heads: int
    """Head counts; 0 with rank 4."""
    elem_type: int
    scale: float | None
    softcap: float

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.key, self.value

    @property
    def past_axis(self) -> int:
        """The axis of tokens in past and present."""
        return 2 if self.rule.past_inside else self.rank - 2


def find_layer(view: GraphView, index: int) -> Layer:
    """Reads an Attention node and what is around it.

    Raises:
        NotUnderstood: there is no past, or it is used in another way than as the cache of this node.
    """
    node = view.nodes[index]
    inputs = {name: value for name, value in zip(_INPUTS, node.input, strict=False) if value}
    outputs = [*node.output, *[""] * 4][:4]
    options: dict[str, Any] = attributes(node)
    _check_options(inputs, outputs, options)
    past_inside = "past_key" in inputs or "past_value" in inputs
    if past_inside:
        sides = [
            _inside(view, index, name, inputs.get(f"past_{name}", ""), inputs[letter], outputs[output])
            for name, letter, output in (("key", "K", 1), ("value", "V", 2))
        ]
    else:
        if any(outputs[1:3]):
            raise NotUnderstood("it has present outputs but no past inputs")
        sides = [_outside(view, index, name, inputs[letter]) for name, letter in (("key", "K"), ("value", "V"))]
    key, value = sides
    if key.past == value.past:
        raise NotUnderstood(f"'{key.past}' is past of both keys and values")
    return Layer(
        node=index,
        key=key,
        value=value,
        rule=Rule(
            mask=inputs.get("attn_mask"),
            past_inside=past_inside,
            is_causal=bool(options.get("is_causal", 0)),
            left_window_size=int(options.get("left_window_size", -1)),
            right_window_size=int(options.get("right_window_size", -1)),
        ),
        rank=_rank(view, inputs, options, None if past_inside else key.past),
        query_heads=int(options.get("q_num_heads", 0)),
        kv_heads=int(options.get("kv_num_heads", 0)),
        elem_type=_elem_type(view, key, value),
        scale=options.get("scale"),
        softcap=float(options.get("softcap", 0.0)),
    )


def check_repeats(layer: Layer, view: GraphView, evaluator: Evaluator, sizes: Sizes) -> None:
    """Shows that where Attention reads heads made from present, they are present's, each repeated for its query heads.

    Raises:
        NotUnderstood: they are something else.
    """
    for side in layer.sides:
        if side.used in side.present:
            continue
        for batch, past, new in ((1, 0, 2), (2, 3, 1), (2, 5, 4)):
            at = sizes.at(batch, past, new)
            shape = [size_of(dim, at) or 0 for dim in view.shape(side.past) or ()]
            shape[layer.past_axis] = past + new
            if layer.rank != 4 or 0 in shape:
                raise NotUnderstood(f"'{side.used}', which it reads, is not known to be '{side.present[0]}'")
            present: Array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
            try:
                used = evaluator.evaluate(side.used, at, {side.present[0]: present})[side.used]
            except NotComputable as error:
                raise NotUnderstood(
                    f"'{side.used}', which it reads, is not known to be '{side.present[0]}': {error}"
                ) from error
            times = used.shape[1] // shape[1] if used.ndim == 4 else 0
            if not np.array_equal(used, present.repeat(times, axis=1)):
                raise NotUnderstood(
                    f"'{side.used}', which it reads, is not '{side.present[0]}' with each head repeated"
                )


def name_sizes(view: GraphView, layers: list[Layer], ones: Collection[str]) -> Sizes:
    """Which names of sizes in the graph's inputs stand for the batch, the past tokens, the new tokens, and both.

    All pasts are taken to have one length, as a decoder gives them. Inputs in `ones` are padding masks: where the name
    of their last size is no other's, it is that of past and new tokens.
    """
    named = {
        dim: dim != unnamed_size(name, axis)
        for name in view.inputs
        for axis, dim in enumerate(view.shape(name) or ())
        if isinstance(dim, str) and (dim.isidentifier() or dim == unnamed_size(name, axis))
    }
    batch, past, new = set[str](), set[str](), set[str]()
    for layer in layers:
        for side in layer.sides:
            shape = view.shape(side.past) or ()
            batch |= named.keys() & _names(shape[:1])
            past |= named.keys() & _names(shape[layer.past_axis : layer.past_axis + 1])
            made = view.shape(side.new) or ()  # inference finds names that no input has, too
            new |= named.keys() & _names(made[layer.rank - 2 : layer.rank - 1])
    past -= batch
    new -= batch | past
    elsewhere = {dim for name in view.inputs if name not in ones for dim in view.shape(name) or ()}
    total = {
        dim for name in ones for dim in _names((view.shape(name) or ())[-1:]) if dim not in elsewhere
    } & named.keys()
    other: dict[str, int] = {}
    new_is_known = bool(new)
    for dim in named.keys() - batch - past - new - total:
        if new_is_known and named[dim]:
            other[dim] = 11 + 2 * len(other)  # unlike every size tried: it cannot be mistaken for one
        else:
            new.add(dim)
    return Sizes(frozenset(batch), frozenset(past), frozenset(new), frozenset(total), other)


def _names(dims: tuple[Dim, ...]) -> set[str]:
    return {dim for dim in dims if isinstance(dim, str)}


def _check_options(inputs: dict[str, str], outputs: list[str], options: dict[str, Any]) -> None:
    if "nonpad_kv_seqlen" in inputs:
        raise NotUnderstood("it has the input nonpad_kv_seqlen: its cache has a fixed size")
    if outputs[3]:
        raise NotUnderstood("its output qk_matmul_output is asked for, and PagedAttention has none")
    if options.get("softmax_precision") == TensorProto.DOUBLE:
        raise NotUnderstood("its softmax is in double, and PagedAttention's in float")


def _inside(view: GraphView, index: int, name: str, past: str, new: str, present: str) -> Side:
    """Past and present of a node that has them as inputs and outputs."""
    past = view.source(past) if past else ""
    if past not in view.inputs:
        raise NotUnderstood(f"its past_{name} is not an input of the graph")
    _check_past(view, past, index)
    if not present:
        raise NotUnderstood(f"its present_{name} is not asked for")
    copies = view.copies(present)
    _check_present(view, copies, {index})
    return Side(past, new, tuple(copies), present)


def _outside(view: GraphView, index: int, name: str, used: str) -> Side:
    """Past and present that meet in a Concat before the node."""
    letter = name[0].upper()
    present = view.source(used)
    path: set[int] = {index}
    # Between Concat and Attention, exporters repeat heads by Unsqueeze, Expand and Reshape; check_repeats judges them.
    while present in view.producer and is_onnx(
        view.nodes[view.producer[present]], "Unsqueeze", "Expand", "Reshape", "Tile", "RepeatInterleave"
    ):
        maker = view.producer[present]
        path.add(maker)
        present = view.source(view.nodes[maker].input[0])
    maker = view.producer.get(present, -1)
    if maker < 0 or not is_onnx(view.nodes[maker], "Concat") or len(view.nodes[maker].input) != 2:
        raise NotUnderstood(f"its {letter} is not a Concat of past and new {name}s, and it has no past inputs")
    past, new = view.source(view.nodes[maker].input[0]), view.nodes[maker].input[1]
    if past not in view.inputs:
        raise NotUnderstood(f"the first part of its {letter}, '{past}', is not an input of the graph")
    rank = len(view.shape(past) or ())
    axis = int(attributes(view.nodes[maker])["axis"])
    if rank not in (3, 4) or axis not in (rank - 2, -2):
        raise NotUnderstood(
            f"past and new {name}s do not meet on the axis of tokens: Concat has axis {axis}, rank {rank}"
        )
    _check_past(view, past, maker)
    for node in path - {index}:
        _check_readers(view, view.nodes[node].output[0], path)
    copies = view.copies(present)
    _check_present(view, copies, path)
    return Side(past, new, tuple(copies), used if len(path) > 1 else present)


def _check_past(view: GraphView, past: str, reader: int) -> None:
    """Past goes into one node; its shape may be taken."""
    _check_readers(view, past, {reader}, shape_too=True)
    if list(view.nodes[reader].input).count(past) > 1:
        raise NotUnderstood(f"'{past}' is read twice by {view.nodes[reader].op_type} '{view.label(reader)}'")
    if set(view.copies(past)) & view.outputs:
        raise NotUnderstood(f"'{past}' is also an output of the graph")


def _check_present(view: GraphView, copies: list[str], readers: set[int]) -> None:
    """Present goes to an output and to attention; its shape may be taken."""
    if not set(copies) & view.outputs:
        raise NotUnderstood(f"'{copies[0]}' is not an output of the graph: nothing keeps it for the next step")
    _check_readers(view, copies[0], readers, shape_too=True)


def _check_readers(view: GraphView, name: str, readers: set[int], *, shape_too: bool = False) -> None:
    for other in view.readers(name):
        if other not in readers and not (shape_too and is_onnx(view.nodes[other], "Shape")):
            raise NotUnderstood(f"'{name}' is also read by {view.nodes[other].op_type} '{view.label(other)}'")


def _rank(view: GraphView, inputs: dict[str, str], options: dict[str, Any], past: str | None) -> int:
    shapes = [view.shape(name) for name in (past, inputs["Q"], inputs["K"], inputs["V"]) if name]
    ranks = {len(shape) for shape in shapes if shape is not None}
    has_heads = "q_num_heads" in options and "kv_num_heads" in options
    if not ranks and has_heads:
        raise NotUnderstood("the rank of Q, K and V is not known")
    rank = ranks.pop() if ranks else 4
    if ranks or rank not in (3, 4) or (rank == 3 and not has_heads):
        raise NotUnderstood(f"Q, K and V have ranks {sorted({rank} | ranks)}: expected 4, or 3 with both head counts")
    return rank


def _elem_type(view: GraphView, key: Side, value: Side) -> int:
    types = [view.elem_type(side.past) for side in (key, value)]
    if types[0] != types[1] or types[0] not in _TYPES:
        names = [TensorProto.DataType.Name(kind) for kind in types]
        raise NotUnderstood(
            f"its keys are {names[0]}, its values {names[1]}; PagedAttention takes FLOAT, FLOAT16 or BFLOAT16 for both"
        )
    return types[0]
