"""Caches written by the independent writer, field by field, with what they hold: the golden files.

``python tests/cache/golden.py`` writes the files anew to tests/data/paged_cache; a test compares the two.
"""

import pathlib
import sys
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from cache import wire_writer as w

FOLDER = pathlib.Path(__file__).parents[1] / "data" / "paged_cache"


class Page(NamedTuple):
    start: int
    length: int
    key_format: str
    value_format: str
    key: list  # valid rows, [batch, heads, length, width]
    value: list


class Golden(NamedTuple):
    data: bytes
    pages: list[Page]


NAN = b"\0\0\xc0\x7f"


def _empty() -> Golden:
    return Golden(b"", [])


def _named() -> Golden:
    """No blocks, but a name and a doc string."""
    return Golden(w.data(2, "layer 0") + w.data(3, "nothing yet"), [])


def _float() -> Golden:
    """One page of one token; another of two of three rows, the third NaN."""
    first = w.block(
        0,
        1,
        w.data(3, w.tensor(w.FLOAT, (1, 2, 1, 2), w.floats(1, -2, 0.5, 4))),
        w.data(5, w.tensor(w.FLOAT, (1, 2, 1, 1), w.floats(-0.0, 1e-45))),
    )
    key = w.floats(1, 2, 3, 4) + 2 * NAN + w.floats(5, 6, 7, 8) + 2 * NAN
    value = w.floats(10, 20) + NAN + w.floats(30, 40) + NAN
    second = w.block(
        1,
        2,
        w.data(3, w.tensor(w.FLOAT, (1, 2, 3, 2), key)),
        w.data(5, w.tensor(w.FLOAT, (1, 2, 3, 1), value)),
    )
    return Golden(
        first + second,
        [
            Page(0, 1, "FLOAT", "FLOAT", [[[[1, -2]], [[0.5, 4]]]], [[[[-0.0]], [[1e-45]]]]),
            Page(1, 2, "FLOAT", "FLOAT", [[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]], [[[[10], [20]], [[30], [40]]]]),
        ],
    )


def _half() -> Golden:
    """FLOAT16 1, -2, the smallest subnormal, 65504; BFLOAT16 1, -2; typed and raw."""
    dims = b"".join(w.number(1, d) for d in (1, 1, 1, 4))
    patterns = (0x3C00, 0xC000, 0x0001, 0x7BFF)
    packed = w.data(5, b"".join(w.varint(p) for p in patterns))
    unpacked = b"".join(w.number(5, p) for p in (0x3F80, 0xC000))
    value_dims = b"".join(w.number(1, d) for d in (1, 1, 1, 2))
    typed = w.block(
        0,
        1,
        w.data(3, dims + w.number(2, w.FLOAT16) + packed),
        w.data(5, value_dims + w.number(2, w.BFLOAT16) + unpacked),
    )
    raw = w.block(
        1,
        1,
        w.data(3, w.tensor(w.BFLOAT16, (1, 1, 1, 4), b"\x80\x3f\0\xc0\1\0\x7f\x7f")),
        w.data(5, w.tensor(w.FLOAT16, (1, 1, 1, 2), b"\0\x3c\0\xc0")),
    )
    return Golden(
        typed + raw,
        [
            Page(0, 1, "FLOAT16", "BFLOAT16", [[[[1, -2, 2.0**-24, 65504]]]], [[[[1, -2]]]]),
            Page(1, 1, "BFLOAT16", "FLOAT16", [[[[1, -2, 2.0**-133, 255 * 2.0**120]]]], [[[[1, -2]]]]),
        ],
    )


def _codes() -> Golden:
    """All six affine formats with one scale; rows of three values that end inside a byte."""

    def payload(field: int, storage: int, codes: bytes, scale: float, zero: bytes) -> bytes:
        scale_tensor = w.tensor(w.FLOAT, (), w.floats(scale))
        return w.data(field, w.encoded((1, 1, 2, 3), storage, codes, scale_tensor, w.tensor(storage, (), zero)))

    pages = (
        (w.INT8, b"\x80\xff\0\1\2\x7f", 0.5, b"\xff", w.UINT8, b"\0\1\x7f\x80\xfe\xff", 2.0, b"\x80"),
        (w.INT4, b"\xf8\x10\x72", 0.5, b"\x0f", w.UINT4, b"\xf0\x87\x21", 2.0, b"\x08"),
        (w.INT2, b"\x1e\x01", 0.5, b"\3", w.UINT2, b"\xe4\x0d", 2.0, b"\1"),
    )
    data = b"".join(
        w.block(2 * i, 2, payload(4, k, kc, ks, kz), payload(6, v, vc, vs, vz))
        for i, (k, kc, ks, kz, v, vc, vs, vz) in enumerate(pages)
    )
    # INT4 codes: -8 -1 0 1 2 7, zero point -1; UINT4: 0 15 7 8 1 2, zero point 8.
    # INT2 codes: -2 -1 1 0 1 0, zero point -1; UINT2: 0 1 2 3 1 3, zero point 1.
    return Golden(
        data,
        [
            Page(0, 2, "INT8", "UINT8", [[[[-63.5, 0, 0.5], [1, 1.5, 64]]]], [[[[-256, -254, -2], [0, 252, 254]]]]),
            Page(2, 2, "INT4", "UINT4", [[[[-3.5, 0, 0.5], [1, 1.5, 4]]]], [[[[-16, 14, -2], [0, -14, -12]]]]),
            Page(4, 2, "INT2", "UINT2", [[[[-0.5, 0, 1], [0.5, 1, 0.5]]]], [[[[-2, 0, 2], [4, 0, 4]]]]),
        ],
    )


def _granular() -> Golden:
    """Keys with a scale per head (axis -3) and no zero point; values blocked by 2 along a width of 3."""
    key = w.data(
        4,
        w.encoded(
            (1, 2, 1, 3), w.INT8, b"\1\2\3\1\2\3", w.tensor(w.FLOAT, (2,), w.floats(1, 10)), b"", w.number(4, -3)
        ),
    )
    scales = b"".join(w.number(1, d) for d in (1, 2, 1, 2)) + w.number(2, w.FLOAT) + w.data(4, w.floats(1, 2, 4, 8))
    zeros = b"".join(w.number(1, d) for d in (1, 2, 1, 2)) + w.number(2, w.UINT4) + w.data(5, b"\x10\x32")
    value = w.data(6, w.encoded((1, 2, 1, 3), w.UINT4, b"\x21\x43\x65", scales, zeros, w.number(4, 3) + w.number(5, 2)))
    # Codes 1 2 | 3, 4 5 | 6; zero points 0 1 2 3.
    return Golden(
        w.block(0, 1, key, value),
        [Page(0, 1, "INT8", "UINT4", [[[[1, 2, 3]], [[10, 20, 30]]]], [[[[1, 2, 4]], [[8, 12, 24]]]])],
    )


def _free_form() -> Golden:
    """Fields in other orders, repeated scalars, split messages, a replaced oneof, unknown fields and long varints."""
    dims = w.data(1, b"\1\1") + w.number(1, 2) + w.data(1, b"\1")  # packed, not, packed
    key_first = w.data(9, w.floats(8, 9)) + w.number(2, w.INT8) + w.fixed32(100, b"abcd")
    key_second = w.number(2, w.FLOAT) + w.data(9, w.floats(1, 2)) + dims
    block = (
        w.data(6, w.data(4, b"not used"))
        + w.tag(2, w.VARINT, 5)
        + w.varint(9, 10)
        + w.data(3, key_first)
        + w.group(999, w.number(1, 5) + w.group(2, b""))
        + w.data(1, "a known number of another type")
        + w.data(5, w.tensor(w.FLOAT, (1, 1, 2, 1), w.floats(3, 4)))
        + w.data(3, key_second)
        + w.number(2, 2)
        + w.fixed64(12345, b"12345678")
    )
    data = w.data(3, "first") + w.number(50, 7) + w.data(1, block) + w.data(3, "last") + w.data(2, "free")
    return Golden(data, [Page(0, 2, "FLOAT", "FLOAT", [[[[1], [2]]]], [[[[3], [4]]]])])


GOLDEN = {
    "empty": _empty(),
    "named": _named(),
    "float": _float(),
    "half": _half(),
    "codes": _codes(),
    "granular": _granular(),
    "free_form": _free_form(),
}


def worked_example() -> tuple[bytes, bytes, bytes]:
    """The cache of two blocks, with its second quantized, and with that restored."""
    linspace = [-0.5 + i / 7 for i in range(8)]
    first = w.block(
        0,
        2,
        w.data(3, w.tensor(w.FLOAT, (1, 1, 2, 4), w.floats(*linspace))),
        w.data(5, w.tensor(w.FLOAT, (1, 1, 2, 4), w.floats(*(-x for x in linspace)))),
    )
    shape = (1, 1, 2, 4)

    def second(key: bytes, value: bytes) -> bytes:
        return first + w.block(2, 1, key, value)

    original = second(
        w.data(3, w.tensor(w.FLOAT, shape, w.floats(-1.3, -0.4, 0.3, 1.2) + 4 * NAN)),
        w.data(5, w.tensor(w.FLOAT, shape, w.floats(-0.8, -0.3, 0.2, 0.7) + 4 * NAN)),
    )
    # -5 -2 1 5 around 0; 8 plus -6 -2 2 6.
    quantized = second(
        w.data(
            4,
            w.encoded(
                shape,
                w.INT4,
                b"\xeb\x51\0\0",
                w.number(2, w.FLOAT) + w.data(9, w.floats(0.25)),
                w.number(2, w.INT4) + w.data(9, b"\0"),
            ),
        ),
        w.data(
            6,
            w.encoded(
                shape,
                w.UINT4,
                b"\x62\xea\x88\x88",
                w.number(2, w.FLOAT) + w.data(9, w.floats(0.125)),
                w.number(2, w.UINT4) + w.data(9, b"\x08"),
            ),
        ),
    )
    restored = second(
        w.data(3, w.tensor(w.FLOAT16, shape, b"\0\xbd\0\xb8\0\x34\0\x3d" + bytes(8))),
        w.data(5, w.tensor(w.BFLOAT16, shape, b"\x40\xbf\x80\xbe\x80\x3e\x40\x3f" + bytes(8))),
    )
    return original, quantized, restored


def files() -> dict[str, bytes]:
    """Name to content."""
    example = zip(("original", "quantized", "restored"), worked_example(), strict=True)
    return {f"{name}.pb": golden.data for name, golden in GOLDEN.items()} | {
        f"example_{name}.pb": data for name, data in example
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in files().items():
        (FOLDER / name).write_bytes(content)
