"""``python -m onnx_ai_rt``: one module a subcommand.

Each module of this package whose name does not begin with an underscore is a subcommand of that name (with ``-`` for
``_``). It has a docstring, whose first line is its help, and two functions::

    def configure(parser: argparse.ArgumentParser) -> None: ...   # adds arguments
    def run(args: argparse.Namespace) -> int: ...                 # does the work, returns the exit code

and imports what is slow inside ``run``. A ``CommandError`` ends the program with its text and exit code 2.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence

from onnx_ai_rt.cli._errors import CommandError

__all__ = ["CommandError", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0 done, 2 wrong use or a file that cannot be read."""
    parser = argparse.ArgumentParser(
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
    try:
        return int(args.run(args))
    except CommandError as error:
        print(f"onnx_ai_rt: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, for example `head`, has seen enough
        sys.stderr.close()
        return 0
