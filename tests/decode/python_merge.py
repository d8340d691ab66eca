"""The merge of pages in plain Python: what the loop expects of the one in C++."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnx_ai_rt.proto import PagedCacheBlockProto, PagedCacheProto
from onnx_ai_rt.reference.quantize import find_format, pack_codes, unpack_codes


def merge_pages(buffer: np.ndarray, begin: int, end: int, block_size: int) -> int:
    """Merges neighbours in ``buffer[begin:end]``; returns the new end."""
    pages = list(PagedCacheProto.FromString(buffer[begin:end].tobytes()).blocks)
    merged: list[PagedCacheBlockProto] = []
    for page in pages:
        if merged and merged[-1].length + page.length <= block_size and _kind(merged[-1]) == _kind(page):
            merged[-1] = _join(merged[-1], page)
        else:
            merged.append(page)
    data = PagedCacheProto(blocks=merged).SerializeToString()
    assert len(data) <= end - begin
    buffer[begin : begin + len(data)] = np.frombuffer(data, np.uint8)
    return begin + len(data)


def _sides(page: PagedCacheBlockProto) -> list:
    return [getattr(page, page.WhichOneof(f"{side}_payload")) for side in ("key", "value")]


def _kind(page: PagedCacheBlockProto) -> list:
    return [
        side.data_type if isinstance(side, TensorProto) else side.affine.SerializeToString() for side in _sides(page)
    ]


def _join(one: PagedCacheBlockProto, two: PagedCacheBlockProto) -> PagedCacheBlockProto:
    joined = PagedCacheBlockProto()
    joined.CopyFrom(one)
    joined.length = one.length + two.length
    for target, *parts in zip(_sides(joined), _sides(one), _sides(two), strict=True):
        rows = np.concatenate([_rows(p, page.length) for p, page in zip(parts, (one, two), strict=True)], axis=2)
        if isinstance(target, TensorProto):
            target.dims[2] = joined.length
            target.raw_data = rows.tobytes()
        else:
            format = find_format(target.affine.storage_type)
            target.logical_type.tensor_type.shape.dim[2].dim_value = joined.length
            target.raw_data = pack_codes(rows, format.bits)
    return joined


def _rows(side: object, length: int) -> np.ndarray:
    if isinstance(side, TensorProto):
        format, dims = find_format(side.data_type), list(side.dims)
        values = np.frombuffer(side.raw_data, f"u{format.bits // 8}")
    else:
        format = find_format(side.affine.storage_type)
        dims = [d.dim_value for d in side.logical_type.tensor_type.shape.dim]
        values = unpack_codes(side.raw_data, format, int(np.prod(dims)))
    return values.reshape(dims)[:, :, :length]
