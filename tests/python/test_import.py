"""The package loads quickly, and says what it misses."""

from __future__ import annotations

import subprocess
import sys

import pytest

import onnx_ai_rt

SLOW = ("numpy", "onnx", "onnxruntime", "ml_dtypes", "google.protobuf", "ctypes", "argparse")
_WITHOUT_RUNTIME = """
import importlib.util, sys
sys.modules["onnxruntime"] = None
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "onnxruntime" else find_spec(name, *rest)
"""


def run(program: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *flags, "-c", program], capture_output=True, text=True, check=False)


def test_import_loads_nothing_slow() -> None:
    program = "import sys; before = set(sys.modules); import onnx_ai_rt; print(*sorted(set(sys.modules) - before))"
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert not set(SLOW) & set(done.stdout.split())


@pytest.mark.parametrize("name", onnx_ai_rt.__all__)
def test_every_public_name_exists_and_says_what_it_is(name: str) -> None:
    value = getattr(onnx_ai_rt, name)
    assert name in dir(onnx_ai_rt)
    assert value.__doc__ or hasattr(value, "DESCRIPTOR")  # messages are documented in their .proto


def test_version() -> None:
    from importlib.metadata import version

    from onnx_ai_rt._library import query

    assert onnx_ai_rt.__version__ == version("onnx-ai-rt") == query("info")["version"]


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'onnx_ai_rt' has no attribute 'nonsense'"):
        onnx_ai_rt.nonsense  # noqa: B018


def test_without_onnxruntime_the_import_says_what_to_install() -> None:
    done = run(_WITHOUT_RUNTIME + "import onnx_ai_rt; print(onnx_ai_rt.PagedCacheProto.__name__)")
    assert done.stdout.strip() == "PagedCacheProto"
    assert "pip install onnx-ai-rt[onnxruntime]" in done.stderr


@pytest.mark.parametrize("call", ["register(None)", "to_ortvalue([1.0])"])
def test_without_onnxruntime_what_needs_it_says_what_to_install(call: str) -> None:
    done = run(_WITHOUT_RUNTIME + f"import onnx_ai_rt; onnx_ai_rt.{call}", "-Wignore")
    assert done.returncode == 1
    assert "ImportError: onnx_ai_rt needs onnxruntime 1.21 or later" in done.stderr
    assert done.stderr.strip().endswith("pip install onnx-ai-rt[onnxruntime]")


def test_without_onnxruntime_the_command_line_works() -> None:
    done = run(_WITHOUT_RUNTIME + "from onnx_ai_rt.cli import main; sys.exit(main(['info']))", "-Wignore")
    assert done.returncode == 0, done.stderr
    assert "ai.onnx::Attention" in done.stdout
