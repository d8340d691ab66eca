"""examples/quickstart.py, which is `make demo`, runs and checks itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart.py"


@pytest.mark.skipif(not EXAMPLE.exists(), reason="the example is not in this checkout")
def test_quickstart() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the 200 tokens agree: True" in done.stdout
    speeds = [line for line in done.stdout.splitlines() if "tokens a second, the median of 5 runs in turn" in line]
    assert len(speeds) == 3
    assert done.stdout.count("no kernel of this library ran") == 2
