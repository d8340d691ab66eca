"""Type and shape inference of the `ai.rt` operators for `onnx.shape_inference`: functions over its InferenceContext.

Symbolic dimensions keep their names; a size that cannot be told stays unknown. A sequence length that is the sum of two
symbols is unknown. A shape that cannot be right raises InferenceError, which onnx lets through in both of its modes,
strict or not, from functions in Python.
"""

from __future__ import annotations

from typing import Any, NoReturn

from onnx import TensorProto, TypeProto, shape_inference

Dim = int | str | None  # a size, a symbol, or unknown
Shape = tuple[Dim, ...]


def _fail(context: Any, message: str) -> NoReturn:
    raise shape_inference.InferenceError(f"{context.get_display_name()}: {message}")


def _elem_type(context: Any, index: int) -> int:
    """onnx.TensorProto.DataType of an input, UNDEFINED when it is not known."""
    type_proto = context.get_input_type(index) if context.has_input(index) else None
    return TensorProto.UNDEFINED if type_proto is None else int(type_proto.tensor_type.elem_type)


def _shape(context: Any, index: int, name: str, ranks: tuple[int, ...]) -> Shape | None:
    """The shape of an input, None when it is omitted or its rank is not known."""
    type_proto = context.get_input_type(index) if context.has_input(index) else None
    if type_proto is None or not type_proto.tensor_type.HasField("shape"):
        return None
    dims = type_proto.tensor_type.shape.dim
    if len(dims) not in ranks:
        _fail(context, f"rank of '{name}': expected {' or '.join(map(str, ranks))}, got {len(dims)}")
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims)


def _set_output(context: Any, index: int, elem_type: int, shape: Shape | None) -> None:
    if index >= context.get_num_outputs() or elem_type == TensorProto.UNDEFINED:
        return
    type_proto = TypeProto()
    type_proto.tensor_type.elem_type = elem_type
    if shape is not None:
        type_proto.tensor_type.shape.SetInParent()
        for size in shape:
            dim = type_proto.tensor_type.shape.dim.add()
            if isinstance(size, int):
                dim.dim_value = size
            elif size is not None:
                dim.dim_param = size
    context.set_output_type(index, type_proto)


def _int_attribute(context: Any, name: str) -> int | None:
    attribute = context.get_attribute(name)
    return None if attribute is None else int(attribute.i)


def _divide(context: Any, name: str, size: Dim, heads: int) -> Dim:
    """Head size from the last dimension of a rank-3 input."""
    if not isinstance(size, int):
        return None
    if size % heads:
        _fail(context, f"last dimension of '{name}': expected a multiple of {heads} heads, got {size}")
    return size // heads


def _four_dimensional(context: Any, index: int, name: str, head_attribute: str) -> tuple[Shape | None, bool]:
    """Shape of Q, K or V as (B,H,seq,size), and whether it has rank 3."""
    shape = _shape(context, index, name, (3, 4))
    if shape is None or len(shape) == 4:
        return shape, False
    heads = _int_attribute(context, head_attribute)
    if heads is None or heads <= 0:
        _fail(context, f"attribute '{head_attribute}': expected a positive value, as '{name}' has rank 3, got {heads}")
    batch, seq, hidden = shape
    return (batch, heads, seq, _divide(context, name, hidden, heads)), True


def _sum(past: Dim, new: Dim) -> Dim:
    if past == 0:
        return new
    if new == 0:
        return past
    return past + new if isinstance(past, int) and isinstance(new, int) else None


def infer_attention(context: Any) -> None:
    """Y, present_key, present_value, qk_matmul_output of ai.rt::Attention."""
    query_type, value_type = _elem_type(context, 0), _elem_type(context, 2)
    query, rank3 = _four_dimensional(context, 0, "Q", "q_num_heads")
    key, _ = _four_dimensional(context, 1, "K", "kv_num_heads")
    value, _ = _four_dimensional(context, 2, "V", "kv_num_heads")
    past_key, past_value = _shape(context, 4, "past_key", (4,)), _shape(context, 5, "past_value", (4,))
    has_past = context.has_input(4)
    batch, q_heads, q_len, head_size = query or (None,) * 4
    _, kv_heads, new_len, key_head_size = key or (None,) * 4
    v_head_size = value[3] if value else None
    past_len: Dim = 0 if not has_past else past_key[2] if past_key else past_value[2] if past_value else None
    kv_len = _sum(past_len, new_len)
    output: Shape | None = None
    if query and rank3:
        hidden = q_heads * v_head_size if isinstance(q_heads, int) and isinstance(v_head_size, int) else None
        output = (batch, q_len, hidden)
    elif query:
        output = (batch, q_heads, q_len, v_head_size)
    _set_output(context, 0, query_type, output)
    head_size = key_head_size if head_size is None else head_size
    _set_output(context, 1, query_type, (batch, kv_heads, kv_len, head_size))
    _set_output(context, 2, value_type, (batch, kv_heads, kv_len, v_head_size))
    _set_output(context, 3, query_type, (batch, q_heads, q_len, kv_len))


def infer_quantize_paged_cache(context: Any) -> None:
    """A cache: bytes whose number depends on their content."""
    _shape(context, 0, "cache", (1,))
    _shape(context, 1, "block_indices", (1,))
    _set_output(context, 0, TensorProto.UINT8, (None,))


def infer_paged_attention(context: Any) -> None:
    """Y, present, appended of ai.rt::PagedAttention."""
    query, value = _shape(context, 0, "Q", (4,)), _shape(context, 2, "V", (4,))
    _shape(context, 1, "K", (4,))
    _shape(context, 3, "past", (1,))
    output = None if query is None else (*query[:3], value[3] if value else None)
    _set_output(context, 0, _elem_type(context, 0), output)
    _set_output(context, 1, TensorProto.UINT8, (None,))
    _set_output(context, 2, TensorProto.UINT8, (None,))


def infer_paged_cache_length(context: Any) -> None:
    """The number of tokens, a scalar."""
    _shape(context, 0, "cache", (1,))
    _set_output(context, 0, TensorProto.INT64, ())
