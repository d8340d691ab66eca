"""``python -m onnx_ai_rt``: one module a subcommand.

Each module of this package whose name does not begin with an underscore is a subcommand of that name (with ``-`` for
``_``). It has a docstring, whose first line is its help, and two functions::

    def configure(parser: argparse.ArgumentParser) -> None: ...   # adds arguments
    def run(args: argparse.Namespace) -> int: ...                 # does the work, returns the exit code

and imports what is slow inside ``run``. A ``CommandError`` ends the program with its text and exit code 2.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnx_ai_rt.cli._errors import CommandError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["CommandError", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0 done, 2 wrong use or a file that cannot be read or written."""
    try:
        try:
            return _run(argv)
        except CommandError as error:
            print(f"onnx_ai_rt: {error}", file=sys.stderr)
            return 2
        finally:  # also behind --help, which leaves by SystemExit
            if sys.stdout is not None:
                sys.stdout.flush()  # not at the end of the process, where an error could not be told
    except BrokenPipeError:  # the reader, for example `head`, has seen enough
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        what = "the output" if error.filename is None else error.filename
        print(f"onnx_ai_rt: cannot write {what}: {error.strerror or error}", file=sys.stderr)
        return 2


def _run(argv: Sequence[str] | None) -> int:
    parser = _Parser(
        prog="python -m onnx_ai_rt", description="Attention and compressed key/value caches for ONNX Runtime."
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
        module = importlib.import_module(f"{__name__}.{name}")
        doc = (module.__doc__ or "").strip()
        command = subparsers.add_parser(name.replace("_", "-"), help=doc.splitlines()[0].rstrip("."), description=doc)
        module.configure(command)
        command.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    return int(args.run(args))


class _Parser(argparse.ArgumentParser):
    """Its help is output like any other: argparse's own is silent about a full disk."""

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        print(self.format_help(), end="", file=file)


def _drop_output() -> None:
    """What standard output still holds goes nowhere; else Python would try again to write it, and complain."""
    with contextlib.suppress(OSError, ValueError):  # a stream that is no file
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)
