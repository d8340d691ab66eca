"""examples/paged_decode.py runs, and checks itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "paged_decode.py"


def test_example(tmp_path: Path) -> None:
    figure = tmp_path / "figures" / "decode.png"
    options = ["--tokens", "100", "--texts", "1", "--figure", str(figure), "--context", "64"]
    command = [sys.executable, str(EXAMPLE), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the 100 tokens over float pages are those of the exported model: True" in done.stdout
    for mode in ("exported model", "float pages", "INT8 pages", "INT4 pages", "mixed pages"):
        assert f"\n--- {mode}\n" in done.stdout
    assert figure.stat().st_size > 10_000
