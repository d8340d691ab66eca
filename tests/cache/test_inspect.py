"""``python -m onnx_ai_rt inspect``."""

import json
import os
import threading

import pytest
from cache import wire_writer as w
from cache.defects import DEFECTS as ALL_DEFECTS
from cache.defects import base, broken, missing_words

from onnx_ai_rt.cli import main


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.cache"
    path.write_bytes(base().SerializeToString())
    return path


def test_table(path, capsys):
    assert main(["inspect", str(path)]) == 0
    head, _, *table, _, total = capsys.readouterr().out.splitlines()
    assert head == f"{path}: 8 tokens, batch 2, 2 heads, width 3 (key) and 3 (value)"
    assert [" ".join(line.split()) for line in table] == [
        "page tokens capacity key value bytes bits/value float is larger",
        "0 0-3 4 FLOAT FLOAT 423 35.25 0.91 x",
        "1 4-6 4 INT4 scale 0.5, zero 1 UINT8 by 2 columns 365 40.56 0.79 x",
        "2 7 1 INT8 per head BFLOAT16 116 38.67 0.83 x",
    ]
    assert total == "3 pages, 910 B, 37.92 bits a value, 0.84 times smaller than float"


def test_json(path, capsys):
    assert main(["inspect", "--json", str(path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["tokens"], shown["batch"], shown["kv_heads"], shown["key_width"]) == (8, 2, 2, 3)
    assert shown["bytes"] == path.stat().st_size == sum(p["bytes"] for p in shown["pages"]) + 6
    assert shown["pages"][1]["key"] == {"format": "INT4", "bytes": 24, "scale": 0.5, "zero_point": 1}
    assert shown["pages"][2]["value"] == {"format": "BFLOAT16", "bytes": 24}
    assert shown["pages"][1]["value"]["block_size"] == 2


def test_empty(tmp_path, capsys):
    path = tmp_path / "empty"
    path.write_bytes(b"")
    assert main(["inspect", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: an empty cache (0 B)\n"
    assert main(["inspect", "--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["pages"] == []


@pytest.mark.parametrize(
    ("content", "size"),
    [(b"\x12\x07layer 3", "9 B"), (b"\x92\x01" + w.varint(3 << 20) + bytes(3 << 20), "3.0 MiB")],
    ids=["name", "unknown field"],
)
def test_bytes_without_a_page(content, size, tmp_path, capsys):
    """protobuf takes them, but they are hardly what was meant."""
    path = tmp_path / "a.cache"
    path.write_bytes(content)
    assert main(["inspect", str(path)]) == 0
    text = f"{path}: no page in {size}: an empty cache with other fields alone, or no cache at all\n"
    assert capsys.readouterr().out == text
    assert main(["inspect", "--json", str(path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["pages"], shown["bytes"]) == ([], len(content))


@pytest.mark.parametrize("defect", ALL_DEFECTS[::7], ids=[d.name for d in ALL_DEFECTS[::7]])
def test_damaged(defect, tmp_path, capsys):
    path = tmp_path / "damaged"
    path.write_bytes(broken(defect).SerializeToString())
    assert main(["inspect", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"onnx_ai_rt: {path}")
    assert captured.err.count("\n") == 1
    assert missing_words(captured.err, defect.words) == []


def test_a_pipe(path, tmp_path, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[path.read_bytes()])
    writer.start()
    assert main(["inspect", str(pipe)]) == 0
    writer.join()
    assert capsys.readouterr().out.startswith(f"{pipe}: 8 tokens, batch 2")


def test_missing_file(capsys):
    assert main(["inspect", "/no/such/file"]) == 2
    assert capsys.readouterr().err == "onnx_ai_rt: cannot read /no/such/file: No such file or directory\n"
