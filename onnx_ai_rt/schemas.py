"""Schemas of the `ai.rt` operators for onnx's checker and shape inference."""

from __future__ import annotations

import atexit
import importlib
import threading
from collections.abc import Callable
from typing import Any

from onnx import defs, helper

from onnx_ai_rt import _schema_inference as inference

DOMAIN = "ai.rt"
VERSION = 1

_FLOATS = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"]
_INTEGERS = [f"tensor({sign}int{bits})" for bits in (8, 16, 32, 64) for sign in ("", "u")]
_FORMATS = [f"tensor({sign}int{bits})" for bits in (8, 4, 2) for sign in ("", "u")] + _FLOATS

_lock = threading.Lock()


def register_schemas() -> None:
    """Gives onnx the schemas of ai.rt::Attention, QuantizePagedCache, PagedAttention and PagedCacheLength (opset 1).

    After it, `onnx.checker.check_model` checks nodes of these operators and `onnx.shape_inference.infer_shapes` infers
    the types and shapes of their outputs. Calling it again does nothing. A schema of the same name and domain that
    somebody else registered stays.
    """
    # onnx.reference makes a table of all operators when it is first imported, and refuses a name in two domains.
    importlib.import_module("onnx.reference.op_run")
    with _lock:
        for schema in (_attention(), _quantize_paged_cache(), _paged_attention(), _paged_cache_length()):
            if not defs.has(schema.name, DOMAIN):
                defs.register_schema(schema)
                # onnx keeps the Python function in a C++ registry that outlives the interpreter: releasing it there
                # would crash the process at its end.
                atexit.register(_deregister, schema.name)


def _deregister(name: str) -> None:
    if defs.has(name, DOMAIN):
        defs.deregister_schema(name, VERSION, DOMAIN)


def _input(name: str, type_str: str, description: str, *, optional: bool = False) -> defs.OpSchema.FormalParameter:
    options = defs.OpSchema.FormalParameterOption
    return defs.OpSchema.FormalParameter(
        name, type_str, description, param_option=options.Optional if optional else options.Single
    )


_output = _input


def _attribute(name: str, default: int | float | None, description: str) -> defs.OpSchema.Attribute:
    """An attribute with a default."""
    return defs.OpSchema.Attribute(name, helper.make_attribute(name, default), description)


def _optional_attribute(name: str, kind: Any, description: str) -> defs.OpSchema.Attribute:
    """An attribute whose absence means something that no value says."""
    return defs.OpSchema.Attribute(name, kind, description, required=False)


_SCALE = ("scale", defs.OpSchema.AttrType.FLOAT, "Any finite factor of the dot products; 1/sqrt(D) when absent.")
_SOFTCAP = ("softcap", 0.0, "If > 0: score = softcap * tanh(score / softcap), before the bias.")
_LEFT_WINDOW = ("left_window_size", -1, "Keys further than this before the query row are hidden; -1: none.")


def _schema(
    name: str,
    doc: str,
    inputs: list[defs.OpSchema.FormalParameter],
    outputs: list[defs.OpSchema.FormalParameter],
    types: dict[str, tuple[list[str], str]],
    infer: Callable[[Any], None],
    attributes: list[defs.OpSchema.Attribute] | None = None,
) -> defs.OpSchema:
    schema = defs.OpSchema(
        name,
        DOMAIN,
        VERSION,
        doc,
        inputs=inputs,
        outputs=outputs,
        type_constraints=[(parameter, allowed, text) for parameter, (allowed, text) in types.items()],
        attributes=attributes or [],
    )
    schema.set_type_and_shape_inference_function(infer)
    return schema


def _attention() -> defs.OpSchema:
    ints = defs.OpSchema.AttrType.INT
    return _schema(
        "Attention",
        "ONNX Attention, the union of opsets 23, 24 and 25. B batch, Hq query heads, Hkv key/value heads, S query "
        "tokens, L past tokens, N new tokens, T = L + N, D head size of Q and K, Dv head size of V.",
        [
            _input("Q", "T1", "(B,Hq,S,D) or (B,S,Hq*D)"),
            _input("K", "T1", "(B,Hkv,N,D) or (B,N,Hkv*D)"),
            _input("V", "T2", "(B,Hkv,N,Dv) or (B,N,Hkv*Dv)"),
            _input("attn_mask", "U", "Rank 0 to 4, right-aligned against (B,Hq,S,T).", optional=True),
            _input("past_key", "T1", "(B,Hkv,L,D)", optional=True),
            _input("past_value", "T2", "(B,Hkv,L,Dv)", optional=True),
            _input("nonpad_kv_seqlen", "tensor(int64)", "(B) or (B,1): valid keys of each batch entry.", optional=True),
        ],
        [
            _output("Y", "T1", "(B,Hq,S,Dv) or (B,S,Hq*Dv), like Q"),
            _output("present_key", "T1", "(B,Hkv,T,D)", optional=True),
            _output("present_value", "T2", "(B,Hkv,T,Dv)", optional=True),
            _output("qk_matmul_output", "T1", "(B,Hq,S,T), see qk_matmul_output_mode", optional=True),
        ],
        {
            "T1": ([*_FLOATS, "tensor(double)"], "Q, K and what follows from them."),
            "T2": ([*_FLOATS, "tensor(double)"], "V, possibly another type than Q's."),
            "U": ([*_FLOATS, "tensor(double)", "tensor(bool)", *_INTEGERS], "False or -inf does not attend."),
        },
        inference.infer_attention,
        [
            _optional_attribute(*_SCALE),
            _attribute("is_causal", 0, "1: a query row sees no key behind its own position."),
            _optional_attribute("q_num_heads", ints, "Hq; required with rank 3."),
            _optional_attribute("kv_num_heads", ints, "Hkv; required with rank 3."),
            _attribute(*_SOFTCAP),
            _optional_attribute("softmax_precision", ints, "DOUBLE: softmax in double; else at least in float."),
            _attribute("qk_matmul_output_mode", 0, "0 scaled products, 1 capped, 2 after bias, 3 probabilities."),
            _attribute(*_LEFT_WINDOW),
            _attribute("right_window_size", -1, "Keys further than this behind the query row are hidden; -1: none."),
        ],
    )


def _quantize_paged_cache() -> defs.OpSchema:
    return _schema(
        "QuantizePagedCache",
        "Converts selected blocks of a serialized paged cache to the formats that the types of the zero points name.",
        [
            _input("cache", "tensor(uint8)", "A serialized PagedCacheProto; 0 bytes are the empty cache."),
            _input("block_indices", "tensor(int64)", "Rank 1, unique, zero-based, any order."),
            _input("key_scale", "tensor(float)", "Scalar, positive and finite."),
            _input("key_zero_point", "TK", "Scalar; its type is the destination of the keys."),
            _input("value_scale", "tensor(float)", "Scalar, positive and finite."),
            _input("value_zero_point", "TV", "Scalar; its type is the destination of the values."),
        ],
        [_output("quantized_cache", "tensor(uint8)", "The cache with the selected blocks converted.")],
        {"TK": (_FORMATS, "Format of the keys."), "TV": (_FORMATS, "Format of the values.")},
        inference.infer_quantize_paged_cache,
    )


def _paged_attention() -> defs.OpSchema:
    return _schema(
        "PagedAttention",
        "Attention over a serialized paged cache and new tokens, which become new blocks. Letters as in Attention.",
        [
            _input("Q", "T", "(B,Hq,S,D), S >= 1"),
            _input("K", "T", "(B,Hkv,S,D)"),
            _input("V", "T", "(B,Hkv,S,Dv)"),
            _input("past", "tensor(uint8)", "A serialized PagedCacheProto; 0 bytes are the empty cache."),
            _input("key_scale", "tensor(float)", "Scalar, together with key_zero_point.", optional=True),
            _input("key_zero_point", "TK", "Scalar; its type is the format of the new keys.", optional=True),
            _input("value_scale", "tensor(float)", "Scalar, together with value_zero_point.", optional=True),
            _input("value_zero_point", "TV", "Scalar; its type is the format of the new values.", optional=True),
        ],
        [
            _output("Y", "T", "(B,Hq,S,Dv)"),
            _output("present", "tensor(uint8)", "past and appended, concatenated.", optional=True),
            _output("appended", "tensor(uint8)", "The serialized new blocks alone.", optional=True),
        ],
        {
            "T": (_FLOATS, "Q, K, V and Y."),
            "TK": (_FORMATS, "Format of the new keys."),
            "TV": (_FORMATS, "Format of the new values."),
        },
        inference.infer_paged_attention,
        [
            _attribute("block_size", 16, "The most tokens of a new block."),
            _attribute("max_tokens", 0, "The most tokens of past and new ones; 0: no limit."),
            _attribute("is_causal", 1, "1: a query row sees no key behind its own position."),
            _attribute(*_LEFT_WINDOW),
            _optional_attribute(*_SCALE),
            _attribute(*_SOFTCAP),
        ],
    )


def _paged_cache_length() -> defs.OpSchema:
    return _schema(
        "PagedCacheLength",
        "The number of tokens of a serialized paged cache.",
        [_input("cache", "tensor(uint8)", "A serialized PagedCacheProto; 0 bytes are the empty cache.")],
        [_output("length", "tensor(int64)", "A scalar; 0 for the empty cache.")],
        {},
        inference.infer_paged_cache_length,
    )
