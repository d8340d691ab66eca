"""``python -m onnx_ai_rt``."""

import sys

from onnx_ai_rt.cli import main

if __name__ == "__main__":
    sys.exit(main())
