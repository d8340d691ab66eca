"""Runs an exported language model, unchanged, on ONNX Runtime's own attention and on this library's.

python examples/quickstart.py [PROMPT] generates greedily, feeding the KV cache back as the model's past inputs, and
compares texts and speeds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

import onnx_ai_rt

MODEL = Path(__file__).parent / "data" / "tiny_pycode_lm.onnx"
NEW_TOKENS = 200


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


def run(title: str, session: onnxruntime.InferenceSession, prompt: bytes) -> tuple[bytes, bool]:
    """Returns the generated text and whether a kernel of this library ran."""
    generate(session, prompt)  # a warm-up, so that the speeds compare
    onnx_ai_rt.kernel_runs(reset=True)
    text, speed = generate(session, prompt)
    runs = onnx_ai_rt.kernel_runs()
    print(f"--- {title}: {speed:.0f} tokens a second")
    for entry in runs:
        print(f"    kernel {entry.operator}, path {entry.path}, target {entry.target}: {entry.count} runs")
    if not runs:
        print("    no kernel of this library ran")
    return text, bool(runs)


def main() -> None:
    prompt = (sys.argv[1] if len(sys.argv) > 1 else "def __init__(self, ").encode()
    plain, _ = run("ONNX Runtime alone", open_session(register=False), prompt)
    ours, ran = run("with onnx_ai_rt registered", open_session(register=True), prompt)
    control, ran_in_control = run("registered, override switched off", open_session(True, override=False), prompt)

    for title, text in (("ONNX Runtime alone", plain), ("with onnx_ai_rt registered", ours)):
        print(f"--- text, {title}:\n{(prompt + text).decode(errors='replace')}")
    agree = plain == ours == control
    print(f"--- the {NEW_TOKENS} tokens agree: {agree}")
    if not agree or not ran or ran_in_control:
        sys.exit("the tokens differ, or a kernel ran that should not have, or none where one should have")


if __name__ == "__main__":
    main()
