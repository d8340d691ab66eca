"""What is measured: one row for each kind of work, with the marks it should reach."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Shape:
    """Sizes of one attention problem. `keys` counts all keys that there are after the step, new ones included."""

    queries: int
    keys: int
    q_heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    batch: int = 1


@dataclass(frozen=True)
class Mark:
    """Our time should be at most `at_most` times that of the contender `reference` with as many threads."""

    reference: str
    at_most: float
    needs_amx: bool = False


@dataclass(frozen=True)
class Row:
    """One kind of work.

    kind: attention (dense keys), paged (ai.rt::PagedAttention), quantize (QuantizePagedCache).
    dtype: of Q, of dense K and V, and of new tokens.
    mask: "" none, "full" an additive mask of finite numbers, "causal" an additive mask with -inf above the diagonal.
    past: of the keys, how many come as past_key and past_value; the present is asked for then.
    page_format: how pages are stored, an element type of ONNX.
    """

    name: str
    title: str
    kind: str
    shape: Shape
    dtype: str = "float32"
    causal: bool = False
    mask: str = ""
    past: int = 0
    page_format: str = ""
    page_size: int = 64
    marks: tuple[Mark, ...] = ()

    @property
    def new_tokens(self) -> int:
        """Keys that do not come from a cache."""
        if self.kind == "paged":
            return self.shape.queries
        return self.shape.keys - self.past


TORCH = "torch float32"
ORT = "ORT Attention"
MEMCPY = "memcpy"

_PREFILL = Shape(1024, 1024)
_DECODE = Shape(1, 4096)


def _pages(name: str, queries: int, length: int, page_format: str, at_most: float, dtype: str = "float32") -> Row:
    title = f"PagedAttention S={queries}, L={length}, {page_format} pages"
    shape = Shape(queries, length + queries)
    marks = (Mark(TORCH, at_most),)
    return Row(name, title, "paged", shape, dtype, causal=True, page_format=page_format, marks=marks)


ROWS = (
    Row(
        "prefill_f32",
        "prefill causal S=T=1024, float32",
        "attention",
        _PREFILL,
        causal=True,
        marks=(Mark(TORCH, 0.72),),
    ),
    Row(
        "prefill_f16",
        "prefill causal S=T=1024, float16",
        "attention",
        _PREFILL,
        "float16",
        causal=True,
        marks=(Mark(TORCH, 0.78), Mark(TORCH, 0.45, needs_amx=True)),
    ),
    Row(
        "prefill_bf16",
        "prefill causal S=T=1024, bfloat16",
        "attention",
        _PREFILL,
        "bfloat16",
        causal=True,
        marks=(Mark(TORCH, 0.19, needs_amx=True),),
    ),
    Row("decode_f32", "decode S=1, T=4096, float32", "attention", _DECODE, marks=(Mark(TORCH, 0.34),)),
    Row("decode_f16", "decode S=1, T=4096, float16", "attention", _DECODE, "float16", marks=(Mark(TORCH, 0.19),)),
    Row("decode_bf16", "decode S=1, T=4096, bfloat16", "attention", _DECODE, "bfloat16", marks=(Mark(TORCH, 0.15),)),
    Row(
        "past_present_f32",
        "decode with past and present, L=4096, float32",
        "attention",
        Shape(1, 4097),
        past=4096,
        marks=(Mark(ORT, 0.55),),
    ),
    _pages("paged_int8", 1, 4096, "INT8", 0.13),
    _pages("paged_int4", 1, 4096, "INT4", 0.13),
    _pages("paged_s4_int8", 4, 4096, "INT8", 0.30),
    _pages("paged_long_bf16", 1, 16384, "BFLOAT16", 0.13, "bfloat16"),
    _pages("paged_long_int8", 1, 16384, "INT8", 0.08),
    Row(
        "mha_mask",
        "prefill S=T=2048, H=12, D=64, full additive mask",
        "attention",
        Shape(2048, 2048, 12, 12, 64),
        mask="full",
        marks=(Mark(TORCH, 0.8), Mark(ORT, 1 / 1.6)),
    ),
    Row(
        "mha_causal_mask",
        "the same, causal additive mask (-inf)",
        "attention",
        Shape(2048, 2048, 12, 12, 64),
        mask="causal",
    ),
    Row(
        "tiny",
        "tiny: S=1, T=16, Hq=4, Hkv=2, D=32",
        "attention",
        Shape(1, 16, 4, 2, 32),
        marks=(Mark(ORT, 1.3),),
    ),
    Row(
        "quantize_int8",
        "QuantizePagedCache FLOAT to INT8, 64 pages of 64 x 8 x 128",
        "quantize",
        Shape(1, 4096),
        page_format="INT8",
        marks=(Mark(MEMCPY, 1.3),),
    ),
    Row(
        "quantize_int4",
        "QuantizePagedCache FLOAT to INT4, 64 pages of 64 x 8 x 128",
        "quantize",
        Shape(1, 4096),
        page_format="INT4",
        marks=(Mark(MEMCPY, 1.3),),
    ),
)

# Our time with all cores (two of them) should be at most one thread's over this, on these rows.
SCALING_ROWS = ("prefill_f32", "prefill_f16", "prefill_bf16", "paged_long_bf16", "paged_long_int8")
SCALING_MARK = 1.85


def shrunk(row: Row) -> Row:
    """The same kind of work at a size that takes well under a millisecond: for trying the suite itself."""
    new = row.shape.queries if row.kind == "paged" else min(row.new_tokens, 32)
    past = min(row.shape.keys - row.new_tokens, 64)
    shape = replace(row.shape, queries=min(row.shape.queries, 32), keys=past + new, q_heads=4, kv_heads=2, head_size=32)
    if row.kind == "quantize":
        shape = replace(shape, keys=128)
    if row.mask:
        shape = replace(shape, kv_heads=4)
    return replace(row, shape=shape, past=min(row.past, past))
