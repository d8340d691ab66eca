"""Print the pages of a cache file: tokens, formats, sizes. Payloads are not decoded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onnx_ai_rt.cli._errors import CommandError

if TYPE_CHECKING:
    from onnx_ai_rt.cache import Page, PagedCache
    from onnx_ai_rt.cache.headers import PayloadHeader


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a serialized PagedCacheProto")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace) -> int:
    cache = _open(args.file)
    if args.json:
        print(json.dumps(as_dict(cache), indent=2))
    else:
        for line in as_lines(args.file, cache):
            print(line)
    return 0


def _open(path: str) -> PagedCache:
    """Maps the file, so that the payloads of a large one are not read."""
    import os

    import numpy as np

    from onnx_ai_rt.cache import CacheError, PagedCache

    try:
        if os.stat(path).st_size:
            return PagedCache(np.memmap(path, np.uint8, "r"), place=path)
        with open(path, "rb") as file:  # an empty file, or a pipe, which tells no size
            return PagedCache(file.read(), place=path)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from error
    except CacheError as error:
        raise CommandError(str(error)) from error


def as_dict(cache: PagedCache) -> dict[str, Any]:
    """Everything that ``inspect`` shows, ready for JSON."""
    (batch, heads, tokens, key_width), value_shape = cache.shapes
    return {
        "tokens": tokens,
        "batch": batch,
        "kv_heads": heads,
        "key_width": key_width,
        "value_width": value_shape[3],
        **_sizes(cache),
        "pages": [
            {
                "start": page.start,
                "length": page.length,
                "capacity": page.capacity,
                **_sizes(page),
                "key": _payload(page.key),
                "value": _payload(page.value),
            }
            for page in cache.pages
        ],
    }


def _sizes(of: Page | PagedCache) -> dict[str, Any]:
    statistics = of.statistics
    return {
        "bytes": statistics.nbytes,
        "payload_bytes": statistics.payload_bytes,
        "bits_per_value": statistics.bits_per_value,
        "float_ratio": statistics.float_ratio,
    }


def _payload(payload: PayloadHeader) -> dict[str, Any]:
    parameters = {
        "scale": payload.scale,
        "zero_point": payload.zero_point,
        "axis": payload.axis,
        "block_size": payload.block_size,
    }
    return {
        "format": payload.format_name,
        "bytes": payload.nbytes,
        **{name: value for name, value in parameters.items() if value is not None},
    }


def as_lines(path: str, cache: PagedCache) -> Iterator[str]:
    """The output for people: a table of the pages between two lines about the whole."""
    from onnx_ai_rt.cache.pages import format_bytes

    (batch, heads, tokens, key_width), value_shape = cache.shapes
    if not cache.pages:
        if cache.nbytes == 0:
            yield f"{path}: an empty cache (0 B)"
        else:
            size = format_bytes(cache.nbytes)
            yield f"{path}: no page in {size}: an empty cache with other fields alone, or no cache at all"
        return
    yield f"{path}: {tokens} tokens, batch {batch}, {heads} heads, width {key_width} (key) and {value_shape[3]} (value)"
    yield ""
    header = ("page", "tokens", "capacity", "key", "value", "bytes", "bits/value", "float is larger")
    rows = [_row(page) for page in cache.pages]
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    left = {1, 3, 4}
    for row in (header, *rows):
        cells = (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        yield "  ".join(cells).rstrip()
    total = cache.statistics
    yield ""
    pages = f"{len(rows)} page{'s' if len(rows) > 1 else ''}"
    yield (
        f"{pages}, {format_bytes(total.nbytes)}, {total.bits_per_value:.2f} bits a value, "
        f"{total.float_ratio:.2f} times smaller than float"
    )


def _row(page: Page) -> tuple[str, ...]:
    statistics = page.statistics
    return (
        str(page.index),
        f"{page.start}-{page.start + page.length - 1}" if page.length > 1 else str(page.start),
        str(page.capacity),
        f"{page.key.format_name} {page.key.parameters}".rstrip(),
        f"{page.value.format_name} {page.value.parameters}".rstrip(),
        str(page.nbytes),
        f"{statistics.bits_per_value:.2f}",
        f"{statistics.float_ratio:.2f} x",
    )
