"""Runs an exported language model, unchanged, on ONNX Runtime's own attention and on this library's.

python examples/quickstart.py [PROMPT] generates greedily, feeding the KV cache back as the model's past inputs, and
compares texts and speeds.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

import onnx_ai_rt

MODEL = Path(__file__).parent / "data" / "tiny_pycode_lm.onnx"
NEW_TOKENS = 200
ROUNDS = 5


def open_session(register: bool, override: bool = True) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    if register:
        onnx_ai_rt.register(options, override_onnx_attention=override)
    return onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])


def generate(session: onnxruntime.InferenceSession, prompt: bytes) -> tuple[bytes, float]:
    """Continues the prompt greedily; a token is a byte. Returns the new tokens and how many came a second."""
    cache = {
        spec.name: np.zeros((1, spec.shape[1], 0, spec.shape[3]), np.float32)
        for spec in session.get_inputs()
        if spec.name.startswith("past_")
    }
    tokens, new = list(prompt), []
    begin = time.perf_counter()
    for _ in range(NEW_TOKENS):
        logits, *present = session.run(None, {"input_ids": np.array([tokens], np.int64), **cache})
        # What the model returns as present_* is what it wants as past_* in the next step.
        names = (spec.name.replace("present_", "past_") for spec in session.get_outputs()[1:])
        cache = dict(zip(names, present, strict=True))
        tokens = [int(logits[0, -1].argmax())]
        new += tokens
    return bytes(new), NEW_TOKENS / (time.perf_counter() - begin)


class Result(NamedTuple):
    text: bytes
    speed: float  # tokens a second, the median of all rounds
    runs: list[onnx_ai_rt.KernelRun]  # kernels of this library, in one round


def measure(sessions: dict[str, onnxruntime.InferenceSession], prompt: bytes) -> dict[str, Result]:
    """Runs the sessions in turn, round after round: what slows the machine for a while slows all of them."""
    texts, runs = {}, {}
    speeds: dict[str, list[float]] = {title: [] for title in sessions}
    for title, session in sessions.items():  # a warm-up, which also shows what runs
        onnx_ai_rt.kernel_runs(reset=True)
        texts[title], _ = generate(session, prompt)
        runs[title] = onnx_ai_rt.kernel_runs()
    for _ in range(ROUNDS):
        for title, session in sessions.items():
            text, speed = generate(session, prompt)
            speeds[title].append(speed)
            if text != texts[title]:
                sys.exit(f"{title}: a second run gave other tokens")
    return {title: Result(texts[title], statistics.median(speeds[title]), runs[title]) for title in sessions}


def show(title: str, result: Result) -> None:
    print(f"--- {title}: {result.speed:.0f} tokens a second, the median of {ROUNDS} runs in turn")
    for entry in result.runs:
        print(f"    kernel {entry.operator}, path {entry.path}, target {entry.target}: {entry.count} runs")
    if not result.runs:
        print("    no kernel of this library ran")


def main() -> None:
    prompt = (sys.argv[1] if len(sys.argv) > 1 else "def __init__(self, ").encode()
    sessions = {
        "ONNX Runtime alone": open_session(register=False),
        "with onnx_ai_rt registered": open_session(register=True),
        "registered, override switched off": open_session(True, override=False),
    }
    results = measure(sessions, prompt)
    for title, result in results.items():
        show(title, result)
    plain, ours, control = results.values()
    for title, result in list(results.items())[:2]:
        print(f"--- text, {title}:\n{(prompt + result.text).decode(errors='replace')}")
    agree = plain.text == ours.text == control.text
    print(f"--- the {NEW_TOKENS} tokens agree: {agree}")
    if not agree or not ours.runs or plain.runs or control.runs:
        sys.exit("the tokens differ, or a kernel ran that should not have, or none where one should have")


if __name__ == "__main__":
    main()
