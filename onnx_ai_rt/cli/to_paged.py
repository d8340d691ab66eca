"""Give a decoder paged caches instead of past and present tensors.

Each Attention node whose past and present are inputs and outputs of the graph becomes ai.rt::PagedAttention over one
cache input. Prints which nodes were changed, which were left and why. Exit code 1: none was changed, and nothing is
written.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_ai_rt.cli._errors import CommandError

if TYPE_CHECKING:
    import onnx

_FORMATS = ("FLOAT", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2")
_SINGLE_FILE_BYTES = 1 << 30  # larger models get their weights in a file beside


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN", help="an .onnx file, with its external data")
    parser.add_argument("output", metavar="OUT", help="the .onnx file to write")
    parser.add_argument(
        "--outputs",
        choices=("appended", "present", "both"),
        default="appended",
        help="what each layer gives: the new blocks alone (default), the whole new cache, or both",
    )
    for side in ("key", "value"):
        parser.add_argument(
            f"--{side}-format", metavar="FORMAT", choices=_FORMATS, help=f"of new {side}s: {', '.join(_FORMATS)}"
        )
        parser.add_argument(
            f"--{side}-scale",
            type=float,
            nargs="+",
            metavar="X",
            help="one for all layers, or one each; without it scale and zero point become inputs of the model",
        )
        parser.add_argument(
            f"--{side}-zero-point", type=int, nargs="+", metavar="N", help="one for all layers, or one each; default 0"
        )
    parser.add_argument("--block-size", type=int, default=64, metavar="N", help="most tokens of a new page; default 64")
    parser.add_argument(
        "--max-tokens", type=int, default=0, metavar="N", help="most tokens of a cache; default no limit"
    )
    parser.add_argument(
        "--left-window-size", type=int, default=-1, metavar="N", help="also hide keys that are further back than this"
    )
    parser.add_argument(
        "--ones",
        action="append",
        default=[],
        metavar="NAME",
        help="an input that is always 1 everywhere, as a padding mask for sequences without padding; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    import onnx
    from google.protobuf.message import DecodeError

    from onnx_ai_rt.rewrite import to_paged

    try:
        model = onnx.load(args.input)
    except OSError as error:
        raise CommandError(f"cannot read {args.input}: {error.strerror or error}") from error
    except DecodeError as error:
        raise CommandError(f"{args.input} is not an ONNX model: {error}") from error
    except (onnx.checker.ValidationError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CommandError(f"cannot read the external data of {args.input}: {reason}") from error
    if not model.HasField("graph"):
        raise CommandError(f"{args.input} is not an ONNX model: it has no graph")
    parameters: dict[str, Any] = {
        name: _one_or_all(getattr(args, name))
        for name in ("key_scale", "key_zero_point", "value_scale", "value_zero_point")
    }
    try:
        paged = to_paged(
            model,
            outputs=args.outputs,
            key_format=args.key_format,
            value_format=args.value_format,
            block_size=args.block_size,
            max_tokens=args.max_tokens,
            left_window_size=args.left_window_size,
            ones=args.ones,
            **parameters,
        )
    except ValueError as error:
        raise CommandError(str(error)) from error
    print(paged)
    if not paged.changed:
        return 1
    try:
        _save(paged.model, Path(args.output))
    except OSError as error:
        raise CommandError(f"cannot write {args.output}: {error.strerror or error}") from error
    return 0


def _one_or_all(values: list[float] | None) -> float | list[float] | None:
    return values[0] if values is not None and len(values) == 1 else values


def _save(model: onnx.ModelProto, path: Path) -> None:
    """Writes the model beside its place and renames it: what was there stays as it is until all is written."""
    import os
    from tempfile import TemporaryDirectory

    import onnx

    from onnx_ai_rt.cache.files import atomic_file

    weights = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    if weights <= _SINGLE_FILE_BYTES:
        with atomic_file(path) as file:
            file.write(model.SerializeToString())
        return
    data = path.with_name(f"{path.name}.data")
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        written = Path(folder, path.name)
        onnx.save(model, written, save_as_external_data=True, location=data.name)
        os.replace(written.with_name(data.name), data)
        os.replace(written, path)
