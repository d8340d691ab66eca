"""The example runs, its numbers are right and its figures are there; so does the code in the document about caches."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plot_quantize_paged_cache.py"


def test_example(tmp_path):
    command = [sys.executable, str(EXAMPLE), "--sequences", "4", "--figures", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    small, model = done.stdout.split("\n\n")
    checks = small.splitlines()[1:]
    assert len(checks) == 10
    assert all(line.startswith("  ok    ") for line in checks)
    rows = dict(re.findall(r"^  (\S+) +(\S.*)$", model, re.MULTILINE))
    bits, _, saved, key_error, value_error, loss, more = rows["INT8"].split()
    assert float(bits) < 9
    assert float(saved.rstrip("%")) > 70
    assert float(key_error) < 0.05
    assert float(value_error) < 0.05
    assert abs(float(more)) < 0.02
    assert 0.5 < float(loss) < 3
    assert float(rows["INT2"].split()[-1]) > float(rows["INT4"].split()[-1])
    for name in ("quantize_token.png", "quantize_errors.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_document(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "paged_cache.md").read_text()
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    assert names["cache"].tokens == 3
    assert (tmp_path / "layer0.cache").stat().st_size > 0
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / "docs" / link).exists(), link
