"""Small decoders as exporters write them, in the styles that differ between exporters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import numpy_helper, parser

HEADS, KV_HEADS, WIDTH, VALUE_WIDTH, HIDDEN = 4, 2, 8, 6, 12

# Nodes that make `mask` of `past` and `seq` (scalars), `total` (their sum), `row` [seq,1] and `column` [1,total].
MASKS = {
    "bool": "mask = LessOrEqual(column, row)",
    "not greater": "later = Greater(column, row)\n mask = Not(later)",
    "batch and head axes": """visible = LessOrEqual(column, row)
        four = Constant<value_ints=[0, 1]>()
        wide = Unsqueeze(visible, four)
        batch1 = Shape<start=0, end=1>(x)
        rest = Constant<value_ints=[1, 1, 1]>()
        size = Concat<axis=0>(batch1, rest)
        mask = Expand(wide, size)""",
    "infinite bias": """visible = LessOrEqual(column, row)
        none = Constant<value_float=0.0>()
        one_float = Constant<value_float=1.0>()
        infinite = Div(one_float, none)
        minus = Neg(infinite)
        mask = Where(visible, none, minus)""",
    "finite bias": """visible = LessOrEqual(column, row)
        none = Constant<value_float=0.0>()
        hidden = Constant<value_float=-10000.0>()
        mask = Where(visible, none, hidden)""",
    "trilu": """seq1 = Unsqueeze(seq, axis0)
        total1 = Unsqueeze(total, axis0)
        size = Concat<axis=0>(seq1, total1)
        ones = ConstantOfShape<value = int64[1] {1}>(size)
        lower = Trilu<upper=0>(ones, past)
        mask = Cast<to=9>(lower)""",
    "buffer": """past1 = Unsqueeze(past, axis0)
        total1 = Unsqueeze(total, axis0)
        axis1 = Constant<value_ints=[1]>()
        rows = Slice(buffer, past1, total1, axis0)
        start = Constant<value_ints=[0]>()
        mask = Slice(rows, start, total1, axis1)""",
    "window": """visible = LessOrEqual(column, row)
        reach = Constant<value_int=3>()
        first = Sub(row, reach)
        near = GreaterOrEqual(column, first)
        mask = And(visible, near)""",
    "wide window": """visible = LessOrEqual(column, row)
        reach = Constant<value_int=300>()
        first = Sub(row, reach)
        near = Greater(column, first)
        mask = And(visible, near)""",
    "none": "",
    # Masks that PagedAttention cannot express.
    "too many": "next_row = Add(row, one)\n mask = LessOrEqual(column, next_row)",
    "prefix": """visible = LessOrEqual(column, row)
        two = Constant<value_int=2>()
        first = Less(column, two)
        mask = Or(visible, first)""",
    "far row": """visible = LessOrEqual(column, row)
        far = Constant<value_int=500>()
        odd = Equal(column, far)
        fine = Not(odd)
        mask = And(visible, fine)""",
    "small bias": """visible = LessOrEqual(column, row)
        none = Constant<value_float=0.0>()
        hidden = Constant<value_float=-10.0>()
        mask = Where(visible, none, hidden)""",
    "data": """visible = LessOrEqual(column, row)
        padded = Cast<to=9>(attention_mask)
        two_axes = Constant<value_ints=[1, 2]>()
        spread = Unsqueeze(padded, two_axes)
        mask = And(visible, spread)""",
}


def buffer() -> np.ndarray:
    """The precomputed causal mask of a decoder with a longest context."""
    return np.tri(64, dtype=bool)


def decoder(
    style: str = "concat",
    *,
    mask: str = "bool",
    layers: int = 2,
    rank: int = 4,
    repeat: bool = False,
    attributes: str = "",
    lengths_from: str = "size",
    domain: str = "",
    elem: str = "float",
    named: bool = True,
    change: Callable[[str], str] = lambda text: text,
) -> onnx.ModelProto:
    """A decoder with random weights over inputs ``x [batch, seq, HIDDEN]``.

    Args:
        style: "concat" (past and new meet in Concat) or "inside" (Attention has the past inputs).
        mask: a key of `MASKS`.
        layers: how many.
        rank: of Q, K and V.
        repeat: whether key and value heads are repeated before Attention.
        attributes: of Attention, as text.
        lengths_from: "size" takes the number of past tokens from one size of the past, "whole" from the whole shape.
        domain: of Attention: "" or "ai.rt".
        elem: type of x and past.
        named: whether the sizes of inputs have names.
        change: of the model's text, for tests that break it.
    """
    batch, seq, past = ("batch", "seq", "past_len") if named else ("?", "?", "?")
    tokens = f"{batch},KV,{past},W" if style == "inside" or rank == 4 else f"{batch},{past},KVW"
    inputs, outputs, nodes = [f"{elem}[{batch},{seq},{HIDDEN}] x"], [f"{elem}[batch,seq,{HIDDEN}] y"], []
    if mask == "data":
        inputs.append(f"int64[{batch},total] attention_mask")
    for i in range(layers):
        for side, width in (("key", WIDTH), ("value", VALUE_WIDTH)):
            shape = tokens.replace("KVW", str(KV_HEADS * width)).replace("KV", str(KV_HEADS)).replace("W", str(width))
            inputs.append(f"{elem}[{shape}] past_{side}_{i}")
            outputs.append(f"{elem}[{shape.replace(past, 'total')}] present_{side}_{i}")
    nodes += _lengths(lengths_from, 1 if style == "concat" and rank == 3 else 2, elem)
    hidden = "x_placed"
    for i in range(layers):
        nodes += _projections(i, hidden, rank)
        nodes += _attention(i, style, mask, rank, repeat, attributes, domain)
        hidden = f"hidden_{i}"
    nodes.append(f"y = Identity({hidden})")
    text = f"""<ir_version: 10, opset_import: ["": 23, "ai.rt": 1]>
        decoder ({", ".join(inputs)}) => ({", ".join(outputs)}) {{ {chr(10).join(nodes)} }}"""
    text = text.replace("MASK_NODES", MASKS[mask])
    if not domain:
        text = text.replace(', "ai.rt": 1', "")
    model = parser.parse_model(change(text))
    rng = np.random.default_rng(1)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    for i in range(layers):
        for name, size in (("q", HEADS * WIDTH), ("k", KV_HEADS * WIDTH), ("v", KV_HEADS * VALUE_WIDTH)):
            weights = rng.normal(size=(HIDDEN, size)).astype(dtype) / 4
            model.graph.initializer.append(numpy_helper.from_array(weights.astype(dtype), f"w{name}_{i}"))
        weights = rng.normal(size=(HEADS * VALUE_WIDTH, HIDDEN)) / 4
        model.graph.initializer.append(numpy_helper.from_array(weights.astype(dtype), f"wo_{i}"))
    constants = {
        "zero": np.int64(0), "one": np.int64(1), "axis0": np.array([0]), "to_column": np.array([1]),
        "split_q": np.array([0, 0, HEADS, WIDTH]), "split_k": np.array([0, 0, KV_HEADS, WIDTH]),
        "split_v": np.array([0, 0, KV_HEADS, VALUE_WIDTH]), "join": np.array([0, 0, HEADS * VALUE_WIDTH]),
        "axis2": np.array([2]), "spread_k": np.array([1, 1, HEADS // KV_HEADS, 1, 1]),
        "spread_mixed": np.array([1, HEADS // KV_HEADS, 1, 1, 1]),
        "merge_k": np.array([0, HEADS, -1, WIDTH]), "merge_v": np.array([0, HEADS, -1, VALUE_WIDTH]),
        "two": np.int64(2), "buffer": buffer(), "tenth": np.array(0.1, dtype),
    }  # fmt: skip
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def _lengths(source: str, axis: int, elem: str) -> list[str]:
    """The lengths, the positions of rows and columns, and x with its position added."""
    if source == "whole":
        past = f"""past_shape = Shape(past_key_0)
            at = Constant<value_int={axis}>()
            past = Gather<axis=0>(past_shape, at)"""
    else:
        past = f"""past1d = Shape<start={axis}, end={axis + 1}>(past_key_0)
            past = Squeeze(past1d)"""
    kind = {"float": 1, "float16": 10, "bfloat16": 16}[elem]
    return [
        f"""seq1d = Shape<start=1, end=2>(x)
        seq = Squeeze(seq1d)
        {past}
        total = Add(past, seq)
        rows_here = Range(zero, seq, one)
        rows_there = Add(rows_here, past)
        row = Unsqueeze(rows_there, to_column)
        columns = Range(zero, total, one)
        column = Unsqueeze(columns, axis0)
        place = Cast<to={kind}>(row)
        shift = Mul(place, tenth)
        angle = Sin(shift)
        x_placed = Add(x, angle)"""
    ]


def _projections(i: int, hidden: str, rank: int) -> list[str]:
    nodes = []
    for name in "qkv":
        nodes.append(f"{name}_flat_{i} = MatMul({hidden}, w{name}_{i})")
        if rank == 4:
            nodes.append(f"{name}_split_{i} = Reshape({name}_flat_{i}, split_{name})")
            nodes.append(f"{name}_{i} = Transpose<perm=[0,2,1,3]>({name}_split_{i})")
        else:
            nodes.append(f"{name}_{i} = Identity({name}_flat_{i})")
    return nodes


def _attention(i: int, style: str, mask: str, rank: int, repeat: bool, attributes: str, domain: str) -> list[str]:
    nodes = ["MASK_NODES"] if i == 0 and MASKS[mask] else []
    attention = f"{domain}.Attention" if domain else "Attention"
    options = [attributes] if attributes else []
    if rank == 3:
        options += [f"q_num_heads={HEADS}", f"kv_num_heads={KV_HEADS}"]
    option_text = f"<{', '.join(options)}>" if options else ""
    mask_input = "mask" if MASKS[mask] else '""'
    if style == "inside":
        nodes.append(
            f"a_{i}, present_key_{i}, present_value_{i} = {attention}{option_text}"
            f"(q_{i}, k_{i}, v_{i}, {mask_input}, past_key_{i}, past_value_{i})"
        )
    else:
        keys, values = f"present_key_{i}", f"present_value_{i}"
        axis = 2 if rank == 4 else 1
        nodes.append(f"{keys} = Concat<axis={axis}>(past_key_{i}, k_{i})")
        nodes.append(f"{values} = Concat<axis={axis}>(past_value_{i}, v_{i})")
        if repeat:
            nodes += _repeated(i)
            keys, values = f"many_k_{i}", f"many_v_{i}"
        tail = ", mask" if MASKS[mask] else ""
        nodes.append(f"a_{i} = {attention}{option_text}(q_{i}, {keys}, {values}{tail})")
    if rank == 4:
        nodes.append(f"a_turned_{i} = Transpose<perm=[0,2,1,3]>(a_{i})")
        nodes.append(f"a_flat_{i} = Reshape(a_turned_{i}, join)")
    else:
        nodes.append(f"a_flat_{i} = Identity(a_{i})")
    nodes.append(f"hidden_{i} = MatMul(a_flat_{i}, wo_{i})")
    return nodes


def _repeated(i: int) -> list[str]:
    """As exporters repeat heads: [B,KV,T,W] to [B,KV,1,T,W], spread, and back to rank 4."""
    return [
        f"one_{s}_{i} = Unsqueeze(present_{side}_{i}, axis2)\n"
        f"spread_{s}_{i} = Expand(one_{s}_{i}, spread_k)\n"
        f"many_{s}_{i} = Reshape(spread_{s}_{i}, merge_{s})"
        for s, side in (("k", "key"), ("v", "value"))
    ]
