"""Writes the tables of stored results between the markers of docs/performance.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks import accuracy, growth, report

_SECTION = "<!-- begin {0}: written by `python -m benchmarks docs` -->\n{1}\n<!-- end {0} -->"


def sections(results: dict[str, Any]) -> dict[str, str]:
    """Markdown by section name, of those results that are there: table, growth, accuracy."""
    found = {}
    if "table" in results:
        table = results["table"]
        environment, rows = table["environment"], table["rows"]
        found["environment"] = "\n".join(f"- {line}" for line in report.environment_lines(environment))
        found["ceilings"] = report.as_markdown(report.ceiling_table(table["ceilings"]))
        found["table"] = report.as_markdown(report.main_table(rows, environment["has_amx"]))
        found["scaling"] = report.as_markdown(report.scaling_table(rows))
        targets = report.target_table(rows)
        if targets:
            found["targets"] = report.as_markdown(targets)
        found["contenders"] = report.as_markdown(report.contender_table(rows))
    if "growth" in results:
        found["growth"] = report.as_markdown(growth.growth_table(results["growth"]["sweeps"]))
        found["memory"] = report.as_markdown(growth.memory_table(results["growth"]["long_prefill"]))
    if "accuracy" in results:
        found["accuracy"] = report.as_markdown(accuracy.accuracy_table(results["accuracy"]["cases"]))
    return found


def rewrite(path: Path, new: dict[str, str]) -> list[str]:
    """Replaces the sections of a file and says which; other text stays. Raises ValueError for one without markers."""
    text = path.read_text()
    for name, content in new.items():
        pattern = re.compile(rf"<!-- begin {name}: .*?<!-- end {name} -->", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"{path}: expected one section '{name}' between its markers")
        start, end = next(pattern.finditer(text)).span()
        text = text[:start] + _SECTION.format(name, content) + text[end:]
    path.write_text(text)
    return list(new)
