"""``python -m onnx_ai_rt``."""

import sys

from onnx_ai_rt.cli import main

if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # names of files and nodes may have letters that the terminal has not
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main())
