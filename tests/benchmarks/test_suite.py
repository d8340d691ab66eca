"""The benchmark suite runs at tiny sizes, checks what its contenders compute and keeps what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_ROWS = ("prefill_f16", "past_present_f32", "paged_int8", "mha_mask", "quantize_int4")


def _benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a smoke run writes, and prints as `text`."""
    folder = tmp_path_factory.mktemp("results")
    done = _benchmarks("run", "--smoke", "--details", "--threads", "1", "2", "--output", str(folder), "--rows", *_ROWS)
    assert done.returncode == 0, done.stderr
    found = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return {"text": done.stdout, "folder": folder, **found}


def test_each_row_has_ours_and_peers_on_each_thread_count(results: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in results["table"]["rows"]}
    assert set(rows) == set(_ROWS)
    for name, row in rows.items():
        assert row["kernels"] or name == "quantize_int4"  # whose kernel runs without a session
        for run in row["runs"].values():
            own = run["contenders"]["ours"]
            low, high = own["quartiles_ms"]
            assert 0 < low <= own["median_ms"] <= high
            assert run["fraction_of_limit"] > 0
            for contender, ratio in run["ratios"].items():
                assert len(ratio) == 3, contender
    assert "ORT GroupQueryAttention INT4" in rows["paged_int8"]["runs"]["1"]["contenders"]
    assert "ORT Attention" in rows["past_present_f32"]["runs"]["2"]["contenders"]
    assert rows["quantize_int4"]["runs"]["1"]["marks"][0]["reference"] == "memcpy"


def test_results_say_where_they_come_from(results: dict[str, Any]) -> None:
    environment, ceilings = results["table"]["environment"], results["table"]["ceilings"]
    assert {"cpu", "cores", "caches", "versions", "platform", "date", "revision"} <= set(environment)
    assert all(rate > 0 for rates in ceilings["arithmetic"].values() for rate in rates.values())
    assert all(rate > 0 for rate in ceilings["reading"].values())
    for row in _ROWS:
        assert any(found["title"] in results["text"] for found in results["table"]["rows"] if found["name"] == row)


def test_growth_and_accuracy(results: dict[str, Any]) -> None:
    sweeps = {sweep["name"]: sweep["points"] for sweep in results["growth"]["sweeps"]}
    assert {"decode_float32", "decode_bfloat16", "decode_INT8", "prefill", "queries", "heads", "batch"} == set(sweeps)
    for points in sweeps.values():
        assert points[1]["operations"] > points[0]["operations"]
        assert points[0]["median_ms"]["ours"] > 0
    (case,) = results["accuracy"]["cases"]
    assert 0 < case["errors"]["rounding alone"][0] < 1e-6


def test_tables_go_into_the_documentation(results: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text((_ROOT / "docs" / "performance.md").read_text())
    for _ in range(2):  # sections are found again after they were written
        done = _benchmarks("docs", "--results", str(results["folder"]), "--docs", str(tmp_path))
        assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "| float32, prefill causal S=T=256 |" in text
    assert text.count("| thr |") == 2  # the main table and that of all contenders


def test_extra_memory_is_measured_in_a_process_of_its_own() -> None:
    from benchmarks.memory import extra_bytes
    from benchmarks.rows import ROWS, shrunk

    extra = extra_bytes(shrunk(ROWS[0]), 1, "ours")
    assert extra is None or 0 <= extra < 64 << 20


def test_unknown_rows_are_refused() -> None:
    done = _benchmarks("run", "--rows", "nothing")
    assert done.returncode != 0
    assert "no row named nothing" in done.stderr
