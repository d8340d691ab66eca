"""Checks that no layer of csrc/ includes what it must not know, also where a system header would let it.

    python tools/check_includes.py

Prints one line for each wrong #include and fails if there is any.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CSRC = Path(__file__).parent.parent / "csrc"
OWN = {"kernels": {"kernels"}, "cache": {"kernels", "cache"}}
OWN["ort"] = OWN["cache"] | {"ort"}
OWN["python"] = OWN["cache"] | {"python"}
FOREIGN = {"onnxruntime": "ort", "pybind11": "python", "Python.h": "python"}  # start of the name -> the one layer
INCLUDE = re.compile(r'^\s*#\s*(?:include\s*|define\s+HWY_TARGET_INCLUDE\s+)[<"]([^>"]+)[>"]', re.MULTILINE)


def wrong_includes(layer: str, text: str) -> list[str]:
    """The files that `text`, a source of `layer`, includes and must not."""
    wrong = []
    for name in INCLUDE.findall(text):
        top = name.split("/")[0]
        foreign = any(name.startswith(start) and layer != only for start, only in FOREIGN.items())
        if foreign or ".." in name or (top in OWN and top not in OWN[layer]):
            wrong.append(name)
    return wrong


def main() -> None:
    messages = []
    for layer in sorted(OWN):
        for file in sorted((CSRC / layer).rglob("*")):
            if file.suffix in {".h", ".cc"}:
                names = wrong_includes(layer, file.read_text())
                messages += [f"csrc/{file.relative_to(CSRC)}: {layer} must not include {name}" for name in names]
    if messages:
        sys.exit("\n".join(messages))


if __name__ == "__main__":
    main()
