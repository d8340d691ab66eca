"""Turns the attention nodes of a decoder into PagedAttention over cache inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import onnx
from onnx import TensorProto, helper

from onnx_ai_rt._arguments import choice, described, integer, items
from onnx_ai_rt._invalid_models import explained
from onnx_ai_rt.reference.quantize import FORMATS
from onnx_ai_rt.rewrite.evaluate import Evaluator
from onnx_ai_rt.rewrite.formats import NewPages
from onnx_ai_rt.rewrite.graph import GraphView, node_label, remove_dead, replace_all, subgraphs
from onnx_ai_rt.rewrite.layers import Layer, NotUnderstood, check_repeats, find_layer, name_sizes
from onnx_ai_rt.rewrite.mask import NotExpressible, Rule, Visibility, visibility
from onnx_ai_rt.rewrite.paged_model import METADATA_KEY, CacheNames, NodeRewrite, PagedModel, write_cache_names
from onnx_ai_rt.rewrite.shapes import NewNodes, plan_shapes

_OLDEST_OPSET = 15  # Shape has start and end from here on

Outputs = Literal["appended", "present", "both"]


@dataclass(frozen=True)
class _Options:
    outputs: Outputs
    key: NewPages
    value: NewPages
    block_size: int
    max_tokens: int
    left_window_size: int


def to_paged(
    model: onnx.ModelProto,
    *,
    outputs: Outputs = "appended",
    key_format: str | None = None,
    key_scale: float | Sequence[float] | None = None,
    key_zero_point: int | Sequence[int] | None = None,
    value_format: str | None = None,
    value_scale: float | Sequence[float] | None = None,
    value_zero_point: int | Sequence[int] | None = None,
    block_size: int = 64,
    max_tokens: int = 0,
    left_window_size: int = -1,
    ones: Collection[str] = (),
) -> PagedModel:
    """Gives a decoder paged caches instead of past and present tensors.

    Every Attention node with a past and a present becomes ``ai.rt::PagedAttention``: its two past inputs become one
    input ``cache_0``, ``cache_1``, ... (uint8, the serialized cache; 0 bytes at the start), its present outputs become
    ``appended_0``, ... or ``present_0``, ... . Past and present may be Attention's own, or meet in a Concat before it,
    the heads repeated or not; K and V may have rank 4 or 3. A mask must be causal or a causal window: that is shown by
    computing it for many lengths. What the graph computes from the shape of a past tensor comes from
    ``ai.rt::PagedCacheLength``. A node that is not understood stays as it is, and the report says why.

    The pasts of all layers must have one length, as they have in decoders.

    Args:
        model: not changed.
        outputs: what a layer gives: ``"appended"`` (the new blocks alone, for a caller with a growing buffer such as
            `PagedKVCache`), ``"present"`` (the whole new cache) or ``"both"``.
        key_format: of new pages: FLOAT, FLOAT16, BFLOAT16, INT8, UINT8, INT4, UINT4, INT2 or UINT2; None: the model's
            own type.
        key_scale: of a quantized format: one number, or one a converted layer. None makes scale and zero point inputs
            ``key_scale_0``, ``key_zero_point_0``, ... of the model.
        key_zero_point: as `key_scale`; 0 where only the scale is given.
        value_format: as for keys, and independent of them; likewise `value_scale` and `value_zero_point`.
        block_size: the most tokens of a new page.
        max_tokens: running beyond it is an error; 0: no limit.
        left_window_size: also hides keys that are further back than this; -1: only what the model hides.
        ones: names of inputs whose elements are always 1, as a padding mask's for sequences without padding: a mask
            that depends on them is judged for that case alone. Those that nothing reads any more are removed.

    Returns:
        PagedModel: the new model, and what happened to each attention node.

    Raises:
        TypeError, ValueError: for an argument that is not valid.
    """
    if not isinstance(model, onnx.ModelProto):
        raise TypeError(f"to_paged: model: expected an onnx.ModelProto, got {described(model)}")
    choice(outputs, "to_paged: outputs", ("appended", "present", "both"))
    block_size = integer(block_size, "to_paged: block_size", 1)
    max_tokens = integer(max_tokens, "to_paged: max_tokens", 0)
    left_window_size = integer(left_window_size, "to_paged: left_window_size", -1)
    ones = items(ones, "to_paged: ones", "a list of names")
    for name in ones:
        if not isinstance(name, str):
            raise TypeError(f"to_paged: ones: expected a list of names, got {described(name)} in it")
    options = _Options(
        outputs,
        NewPages("key", key_format, key_scale, key_zero_point),
        NewPages("value", value_format, value_scale, value_zero_point),
        block_size,
        max_tokens,
        left_window_size,
    )
    with explained(model, "to_paged"):
        return _converted(model, options, ones)


def _converted(model: onnx.ModelProto, options: _Options, ones: Collection[str]) -> PagedModel:
    view = GraphView(model)
    unknown = sorted(set(ones) - view.inputs.keys())
    if unknown:
        raise ValueError(f"to_paged: ones: expected names of the model's inputs, got {', '.join(unknown)}")
    found, reasons = _find(view, ones)
    for pages in (options.key, options.value):
        pages.check_layers(len(found))
    result, caches = _build(view, found, options, ones) if found else (_copy(model), {})
    nodes = [
        NodeRewrite(
            label,
            _operator(node),
            place,
            caches.get(index) if place == "graph" else None,
            _reasons(node, place, found[index][1].notes if index in found else (reasons.get(index, ""),)),
        )
        for place, index, node, label in _attention_nodes(model)
    ]
    return PagedModel(result, tuple(nodes))


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _is_served(node: onnx.NodeProto) -> bool:
    return node.op_type == "Attention" and node.domain in ("", "ai.onnx", "ai.rt")


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain or 'ai.onnx'}::{node.op_type}"


def _reasons(node: onnx.NodeProto, place: str, reasons: tuple[str, ...]) -> tuple[str, ...]:
    if not _is_served(node):
        return ("only Attention of ai.onnx and ai.rt is converted",)
    if place != "graph":
        return ("only nodes of the main graph are converted",)
    return tuple(reason for reason in reasons if reason)


def _attention_nodes(model: onnx.ModelProto) -> Iterator[tuple[str, int, onnx.NodeProto, str]]:
    """(place, index there, node, label) of everything that is called attention."""

    def walk(place: str, nodes: Sequence[onnx.NodeProto]) -> Iterator[tuple[str, int, onnx.NodeProto, str]]:
        for index, node in enumerate(nodes):
            if "Attention" in node.op_type:
                yield place, index, node, node_label(node)
            for graph in subgraphs(node):
                yield from walk(f"{place} / {node_label(node)}", graph.node)

    yield from walk("graph", model.graph.node)
    for function in model.functions:
        yield from walk(f"function {function.domain or 'ai.onnx'}::{function.name}", function.node)


def _find(view: GraphView, ones: Collection[str]) -> tuple[dict[int, tuple[Layer, Visibility]], dict[int, str]]:
    """The layers that can be converted by their node, and for the other nodes why not."""
    candidates: list[Layer] = []
    reasons: dict[int, str] = {}
    opset = max((o.version for o in view.model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    for index, node in enumerate(view.nodes):
        if not _is_served(node):
            continue
        try:
            if opset < _OLDEST_OPSET:
                raise NotUnderstood(f"the model has opset {opset}, and {_OLDEST_OPSET} is the oldest that is converted")
            candidates.append(find_layer(view, index))
        except NotUnderstood as error:
            reasons[index] = str(error)
    evaluator, sizes = Evaluator(view), name_sizes(view, candidates, ones)
    removed = {side.past for layer in candidates for side in layer.sides}
    found: dict[int, tuple[Layer, Visibility]] = {}
    known: dict[Rule, Visibility | NotExpressible] = {}
    for layer in candidates:
        if layer.rule not in known:
            try:
                known[layer.rule] = visibility(layer.rule, evaluator, sizes, ones)
            except NotExpressible as error:
                known[layer.rule] = error
        verdict = known[layer.rule]
        if isinstance(verdict, NotExpressible):
            reasons[layer.node] = str(verdict)
            continue
        try:
            check_repeats(layer, view, evaluator, sizes)
            plan_shapes(view, layer, removed)
        except NotUnderstood as error:
            reasons[layer.node] = str(error)
            continue
        found[layer.node] = (layer, verdict)
    return found, reasons


def _build(
    view: GraphView, found: dict[int, tuple[Layer, Visibility]], options: _Options, ones: Collection[str]
) -> tuple[onnx.ModelProto, dict[int, CacheNames]]:
    """A new model with the layers converted, and the names of their caches by node."""
    model = _copy(view.model)
    graph = model.graph
    new = NewNodes(view)
    removed = {side.past for layer, _ in found.values() for side in layer.sides}
    replaced: dict[int, list[onnx.NodeProto]] = {}
    front: list[onnx.NodeProto] = []
    inputs: dict[str, list[onnx.ValueInfoProto]] = {name: [] for name in removed}
    outputs: dict[str, list[onnx.ValueInfoProto]] = {}
    caches: dict[int, CacheNames] = {}
    for number, (layer, visible) in enumerate(found.values()):
        names = _cache_names(number, options.outputs, new)
        caches[layer.node] = names
        extra, parameters = _parameters(number, options, new)
        inputs[layer.key.past] = [_bytes_info(names.past), *extra]
        for name in (*layer.key.present, *layer.value.present):
            outputs[name] = []
        first = next(name for name in layer.key.present if name in view.outputs)
        outputs[first] = [_bytes_info(name) for name in (names.appended, names.present) if name]
        replaced[layer.node] = _attention(view.nodes[layer.node], layer, visible, names, parameters, options, new)
        length = ""
        for shape in plan_shapes(view, layer, removed):
            if shape.needs_length and not length:
                length = new.name(f"{names.past}_length")
                front += new.length(names.past, length)
            replaced[shape.node] = new.shape(shape, view.nodes[shape.node].output[0], length)
    nodes = [*front, *(n for i, node in enumerate(view.nodes) for n in replaced.get(i, [node]))]
    replace_all(graph.node, nodes)
    replace_all(graph.input, [v for value in view.model.graph.input for v in inputs.get(value.name, [value])])
    replace_all(graph.output, [v for value in view.model.graph.output for v in outputs.get(value.name, [value])])
    graph.initializer.extend(new.initializers)
    if all(opset.domain != "ai.rt" for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid("ai.rt", 1))
    remove_dead(model, keep_inputs={value.name for value in graph.input} - set(ones))
    replace_all(model.metadata_props, [entry for entry in model.metadata_props if entry.key != METADATA_KEY])
    write_cache_names(model, list(caches.values()))
    return model, caches


def _cache_names(number: int, outputs: Outputs, new: NewNodes) -> CacheNames:
    return CacheNames(
        past=new.name(f"cache_{number}"),
        appended=new.name(f"appended_{number}") if outputs in ("appended", "both") else "",
        present=new.name(f"present_{number}") if outputs in ("present", "both") else "",
    )


def _bytes_info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.UINT8, [f"{name}_bytes"])


def _parameters(number: int, options: _Options, new: NewNodes) -> tuple[list[onnx.ValueInfoProto], list[str]]:
    """Graph inputs to add, and the node's inputs key_scale, key_zero_point, value_scale and value_zero_point."""
    infos, names = [], []
    for pages in (options.key, options.value):
        if pages.format is None:
            names += ["", ""]
            continue
        pair = (new.name(f"{pages.side}_scale_{number}"), new.name(f"{pages.side}_zero_point_{number}"))
        names += pair
        constants = pages.constants(number, pair)
        if constants is not None:
            new.initializers += constants
        else:
            types = (TensorProto.FLOAT, FORMATS[pages.format].data_type)
            infos += [helper.make_tensor_value_info(name, kind, []) for name, kind in zip(pair, types, strict=True)]
    return infos, names


def _attention(
    node: onnx.NodeProto,
    layer: Layer,
    visible: Visibility,
    names: CacheNames,
    parameters: list[str],
    options: _Options,
    new: NewNodes,
) -> list[onnx.NodeProto]:
    """PagedAttention, with a change of layout around it where Q, K and V have rank 3."""
    windows = [window for window in (visible.left_window_size, options.left_window_size) if window >= 0]
    settings: dict[str, Any] = {
        "block_size": options.block_size,
        "max_tokens": options.max_tokens,
        "is_causal": int(visible.is_causal),
        "left_window_size": min(windows, default=-1),
        "softcap": layer.softcap,
    }
    if layer.scale is not None:
        settings["scale"] = layer.scale
    tensors = [node.input[0], layer.key.new, layer.value.new]
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    result = node.output[0]
    if layer.rank == 3:
        heads = (layer.query_heads, layer.kv_heads, layer.kv_heads)
        for i, (tensor, count) in enumerate(zip(tensors, heads, strict=True)):
            nodes, tensors[i] = new.split_heads(tensor, count)
            before += nodes
        result = new.name(f"{node.output[0]}_heads")
        after = new.join_heads(result, node.output[0])
    inputs = [*tensors, names.past, *parameters]
    while not inputs[-1]:
        inputs.pop()
    outputs = [result, names.present, names.appended]
    while not outputs[-1]:
        outputs.pop()
    paged = helper.make_node("PagedAttention", inputs, outputs, name=node.name, domain="ai.rt", **settings)
    return [*before, paged, *after]
