"""What the library file exports, needs and answers."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess

import pytest

import onnx_ai_rt
from onnx_ai_rt._library import query


def output_of(tool: str, *arguments: str) -> str:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} of binutils is not installed")
    command = [tool, *arguments, onnx_ai_rt.get_library_path()]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_exports_two_functions() -> None:
    lines = output_of("nm", "-D", "--defined-only").splitlines()
    assert sorted(line.split()[-1] for line in lines) == ["OnnxAiRtQuery", "RegisterCustomOps"]


def test_needs_neither_onnxruntime_nor_python() -> None:
    needed = [line for line in output_of("readelf", "-d").splitlines() if "(NEEDED)" in line]
    assert needed
    assert not [line for line in needed if "onnxruntime" in line or "python" in line.lower()]


def test_stays_loaded_when_the_last_session_ends() -> None:
    """Counters and the chosen CPU target would be lost, and the next session would load everything again."""
    assert "NODELETE" in output_of("readelf", "-d")


def test_query_info() -> None:
    info = query("info")
    assert info["ort_api_version"] == 21
    assert info["chosen_cpu_target"] in info["cpu_targets"]
    attention = next(o for o in info["operators"] if o["name"] == "Attention")
    assert attention["domains"] == ["", "ai.rt"]
    assert attention["variants"] == 16
    assert [slot["name"] for slot in attention["inputs"] if not slot["optional"]] == ["Q", "K", "V"]
    assert attention["inputs"][0]["types"] == ["float", "float16", "bfloat16", "double"]
    assert attention["inputs"][3] == {"name": "attn_mask", "optional": True, "types": []}
    assert attention["inputs"][6]["types"] == ["int64"]


def test_query_tells_how_many_bytes_it_needs() -> None:
    library = ctypes.CDLL(onnx_ai_rt.get_library_path())
    library.OnnxAiRtQuery.restype = ctypes.c_int64
    library.OnnxAiRtQuery.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64]
    needed = library.OnnxAiRtQuery(b"info", None, 0)
    whole = ctypes.create_string_buffer(b"x" * needed, needed)
    assert library.OnnxAiRtQuery(b"info", whole, needed) == needed
    json.loads(whole.value)
    part = ctypes.create_string_buffer(b"x" * 20, 20)
    assert library.OnnxAiRtQuery(b"info", part, 10) == needed
    assert part.raw == whole.value[:9] + b"\0" + b"x" * 10
    assert library.OnnxAiRtQuery(None, whole, needed) > 0
    assert "error" in json.loads(whole.value)


@pytest.mark.parametrize("request_text", ["", "nonsense", "infos"])
def test_query_refuses_what_it_does_not_know(request_text: str) -> None:
    with pytest.raises(ValueError, match=r"OnnxAiRtQuery: request must be info, .*, got '"):
        query(request_text)


def test_unknown_cpu_target() -> None:
    before = onnx_ai_rt.cpu_info().chosen
    with pytest.raises(ValueError, match="PDP11") as caught:
        onnx_ai_rt.choose_cpu_target("PDP11")
    assert all(target in str(caught.value) for target in onnx_ai_rt.cpu_info().targets)
    assert onnx_ai_rt.cpu_info().chosen == before
