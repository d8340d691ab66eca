"""python -m onnx_ai_rt to-paged."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest
from rewrite.decoders import decoder

from onnx_ai_rt.cli import main


def test_writes_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(decoder(), source)
    options = ["--outputs", "both", "--key-format", "INT8", "--key-scale", "0.1", "--value-format", "UINT4"]
    options += ["--value-scale", "0.2", "0.3", "--value-zero-point", "8", "--block-size", "32", "--max-tokens", "500"]
    assert main(["to-paged", str(source), str(target), *options, "--left-window-size", "100"]) == 0
    assert "2 of 2 attention nodes changed" in capsys.readouterr().out
    model = onnx.load(target)
    node = next(node for node in model.graph.node if node.op_type == "PagedAttention")
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert (values["block_size"], values["max_tokens"], values["left_window_size"]) == (32, 500, 100)
    assert [value.name for value in model.graph.input] == ["x", "cache_0", "cache_1"]


def test_leaves_a_model_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(decoder(mask="prefix"), source)
    assert main(["to-paged", str(source), str(target)]) == 1
    assert "its mask 'mask' is not causal" in capsys.readouterr().out
    assert not target.exists()


def test_large_weights_go_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from onnx_ai_rt.cli import to_paged

    monkeypatch.setattr(to_paged, "_SINGLE_FILE_BYTES", 100)
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(decoder(), source, save_as_external_data=True, location="in.data", size_threshold=0)
    assert main(["to-paged", str(source), str(target)]) == 0
    assert (tmp_path / "out.onnx.data").exists()
    assert onnx.load(target).graph.initializer[0].raw_data
    assert "LEFT" not in capsys.readouterr().out


def test_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.onnx"
    onnx.save(decoder(), source)
    for arguments, message in (
        ([tmp_path / "none.onnx", "out"], "No such file"),
        ([source, tmp_path / "no" / "out.onnx"], "cannot write"),
        ([source, "out", "--block-size", "0"], "block_size: expected 1 or more"),
    ):
        assert main(["to-paged", *map(str, arguments)]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("single_file_bytes", [100, 1 << 30])
def test_a_failed_write_leaves_what_was_there(
    single_file_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from onnx_ai_rt.cli import to_paged

    monkeypatch.setattr(to_paged, "_SINGLE_FILE_BYTES", single_file_bytes)
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(decoder(), source)
    assert main(["to-paged", str(source), str(target)]) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(onnx, "save", fail)
    assert main(["to-paged", str(source), str(target), "--outputs", "both"]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_external_data_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(decoder(), source, save_as_external_data=True, location="in.data", size_threshold=0)
    (tmp_path / "in.data").unlink()
    assert main(["to-paged", str(source), str(target)]) == 2
    error = capsys.readouterr().err
    assert "cannot read" in error
    assert "in.data" in error
    assert error.count("\n") == 1
    assert not target.exists()
    assert main(["check", str(source)]) == 0  # it reads no weights
