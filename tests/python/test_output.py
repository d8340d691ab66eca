"""Where the output of ``python -m onnx_ai_rt`` goes: a full disk, a closed pipe, a terminal of few letters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from cache.defects import base
from rewrite.decoders import decoder

COMMANDS = [
    ["--help"],
    ["inspect", "--help"],
    ["info"],
    ["info", "--json"],
    ["check", "m.onnx"],
    ["check", "m.onnx", "--json"],
    ["inspect", "a.cache"],
    ["inspect", "a.cache", "--json"],
    ["to-paged", "m.onnx", "out.onnx"],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(decoder(), tmp_path / "m.onnx")
    (tmp_path / "a.cache").write_bytes(base().SerializeToString())
    return tmp_path


def run(folder: Path, arguments: list[str], stdout: int, **environment: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "onnx_ai_rt", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=stdout,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        check=False,
        env=os.environ | environment,
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_full_disk(arguments: list[str], folder: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        code, text = run(folder, arguments, full)
    finally:
        os.close(full)
    assert text == "onnx_ai_rt: cannot write the output: No space left on device\n"
    assert code == 2


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_has_gone(arguments: list[str], folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert run(folder, arguments, writer) == (0, "")
    finally:
        os.close(writer)


def test_letters_that_the_terminal_has_not(folder: Path) -> None:
    name = os.fsdecode(b"\xff\xc3\xa9.cache")
    os.rename(folder / "a.cache", folder / name)
    assert run(folder, ["inspect", name], subprocess.DEVNULL, PYTHONIOENCODING="ascii") == (0, "")
    (folder / name).write_bytes(b"\x08")
    code, text = run(folder, ["inspect", name], subprocess.DEVNULL, PYTHONIOENCODING="ascii")
    assert code == 2
    assert text.startswith("onnx_ai_rt: \\udcff\\xe9.cache: input cache: expected a serialized")
    code, text = run(folder, ["inspect", f"no {name}"], subprocess.DEVNULL, PYTHONIOENCODING="ascii")
    assert (code, text) == (2, "onnx_ai_rt: cannot read no \\udcff\\xe9.cache: No such file or directory\n")
