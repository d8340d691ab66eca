"""List a model's attention nodes: which this library serves, which not, and why."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from onnx_ai_rt.cli._errors import CommandError

if TYPE_CHECKING:
    from onnx_ai_rt._check import ModelReport


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="an .onnx file; its external data is not read")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    import onnx
    from google.protobuf.message import DecodeError

    from onnx_ai_rt._check import check_model
    from onnx_ai_rt._invalid_models import explained
    from onnx_ai_rt.schemas import register_schemas

    try:
        model = onnx.load(args.model, load_external_data=False)
    except OSError as error:
        raise CommandError(f"cannot read {args.model}: {error.strerror or error}") from error
    except DecodeError as error:
        raise CommandError(f"{args.model} is not an ONNX model: {error}") from error
    if not model.HasField("graph"):
        raise CommandError(f"{args.model} is not an ONNX model: it has no graph")
    register_schemas()  # lets onnx infer the types behind operators of ai.rt
    try:
        with explained(model, "check"):
            report = check_model(model)
    except ValueError as error:
        raise CommandError(f"{args.model}: {error}") from error
    if args.json:
        print(json.dumps({**asdict(report), "installed_onnxruntime": _installed_runtime()}, indent=2))
    else:
        print(_as_text(args.model, report))
    return 0


def _installed_runtime() -> str:
    """Version of the installed onnxruntime; empty where there is none."""
    try:
        from onnx_ai_rt._runtime import onnxruntime

        return str(onnxruntime().__version__)
    except ImportError:
        return ""


def _as_text(path: str, report: ModelReport) -> str:
    lines = [f"{path}: IR version {report.ir_version}, opset {report.opset or 'none'}", _runtime_line(report)]
    for node in report.nodes:
        types = " ".join(f"{name}:{kind}" for name, kind in node.types.items())
        lines += ["", f"{'served' if node.served else 'NOT SERVED':<12}{node.operator}  '{node.node}' in {node.place}"]
        if types:
            lines.append(f"{'':<12}{types}")
        lines += [f"{'':<12}{reason}" for reason in node.reasons]
    attention = [node for node in report.nodes if node.is_attention]
    served = sum(node.served for node in attention)
    lines += ["", f"{served} of {len(attention)} attention nodes are served" if attention else "no attention nodes"]
    return "\n".join(lines)


def _runtime_line(report: ModelReport) -> str:
    installed = _installed_runtime()
    if not report.needs_onnxruntime:
        return "needs an onnxruntime newer than 1.32; ask it whether it loads the model"
    line = f"needs onnxruntime {report.needs_onnxruntime} or later"
    if not installed:
        return f"{line}; none is installed (pip install onnx-ai-rt[onnxruntime])"
    needed = tuple(int(part) for part in report.needs_onnxruntime.split("."))
    enough = tuple(int(part) for part in installed.split(".")[:2]) >= needed
    return f"{line}; installed is {installed}" + ("" if enough else ", too old for this model")
