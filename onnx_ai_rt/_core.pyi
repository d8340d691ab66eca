"""Types of what the package itself calls in the compiled module; tests and benchmarks call more."""

from typing import Any

import numpy as np
import numpy.typing as npt

def __getattr__(name: str) -> Any: ...
def parse_paged_cache(
    cache: bytes | npt.NDArray[np.uint8], op_name: str = ..., input_name: str = ..., is_run: bool = ...
) -> list[dict[str, Any]]: ...
def quantize_paged_cache(
    cache: bytes | npt.NDArray[np.uint8],
    block_indices: npt.NDArray[np.int64],
    key_scale: float,
    key_type: int,
    key_zero_point: int,
    value_scale: float,
    value_type: int,
    value_zero_point: int,
    threads: int = ...,
    out: npt.NDArray[np.uint8] | None = ...,
) -> npt.NDArray[np.uint8]: ...
def convert_payload(
    data: bytes | npt.NDArray[np.uint8],
    dtype: int,
    shape: tuple[int, int, int, int],
    length: int,
    target_dtype: int,
    target_scale: float = ...,
    target_zero_point: int = ...,
    *,
    capacity: int,
    axis: int = ...,
    block_size: int = ...,
    scales: bytes = ...,
    zero_points: bytes = ...,
    parts: int = ...,
    out: npt.NDArray[np.uint8] | None = ...,
) -> npt.NDArray[np.uint8]: ...
def merge_pages(buffer: npt.NDArray[np.uint8], begin: int, end: int, block_size: int) -> int: ...
