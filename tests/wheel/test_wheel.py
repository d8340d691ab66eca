"""The repaired wheel, as a user without compiler or headers gets it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).parents[2]
NOT_A_SYSTEM_LIBRARY = re.compile(r"onnxruntime|python|hwy\.so\.1$")


@pytest.fixture(scope="module")
def wheel() -> Path:
    wheels = list((ROOT / "dist").glob("*.whl"))
    assert len(wheels) == 1, f"dist/ holds {len(wheels)} wheels, make wheel leaves one there"
    return wheels[0]


class Environment:
    """A virtual environment whose programs find nothing else on the PATH."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        self.folder = folder
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CMAKE", "CXX"))}
        self.variables["PATH"] = str(folder / "bin")

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self.folder / "bin" / "python", *arguments]
        return subprocess.run(command, cwd=self.folder, env=self.variables, capture_output=True, text=True)

    def install(self, requirement: str) -> None:
        done = self.python("-m", "pip", "--disable-pip-version-check", "install", "-q", requirement)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment") / "venv")


def test_says_what_to_install_without_onnxruntime_and_runs_with_it(wheel: Path, environment: Environment) -> None:
    environment.install(str(wheel))
    refused = environment.python("-c", "import onnx_ai_rt; onnx_ai_rt.register(None)")
    assert refused.returncode != 0
    assert "pip install onnx-ai-rt[onnxruntime]" in refused.stderr.replace("'", "").replace('"', ""), refused.stderr

    environment.install(f"{wheel}[onnxruntime]")
    (lines,) = re.findall(r"```python\n(import numpy.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    ran = environment.python("-c", lines)
    assert ran.returncode == 0, ran.stderr
    assert "Attention" in ran.stdout, ran.stdout


def test_contains_what_it_needs_once(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"onnx_ai_rt/py.typed", "onnx_ai_rt/libonnx_ai_rt.so"} <= set(names)
    assert len([name for name in names if re.match(r"onnx_ai_rt/_core\.cp.*\.so$", name)]) == 1
    assert len([name for name in names if "libhwy" in name]) <= 1  # none where Highway is linked statically
    assert "manylinux" in wheel.name


def test_library_exports_two_functions_and_needs_no_runtime(wheel: Path) -> None:
    with zipfile.ZipFile(wheel).open("onnx_ai_rt/libonnx_ai_rt.so") as file:
        elf = ELFFile(file)
        needed = [tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
        exported = {
            symbol.name
            for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL"
        }
    assert exported == {"RegisterCustomOps", "OnnxAiRtQuery"}
    assert not [name for name in needed if NOT_A_SYSTEM_LIBRARY.search(name)]
