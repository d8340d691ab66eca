"""A language model generates text over caches in several formats: text, speed, bytes, agreement with float.

python examples/paged_decode.py [PROMPT] [--tokens N] [--texts N] [--figure FILE --context N]

The exported model has past and present tensors; `to_paged` gives it one paged cache for each layer instead, and
`PagedKVCache` keeps these while it decodes. With float pages the tokens are those of the model as it was exported.

With --figure it decodes one long text and draws bytes and step times against the length of the context.
"""

from __future__ import annotations

import argparse
import http
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import onnx_ai_rt
from onnx_ai_rt import PagedKVCache, ReformatPolicy

MODEL = Path(__file__).parent / "data" / "tiny_pycode_lm.onnx"
PROMPT = "def __init__(self, "
TEMPERATURE, SEED = 0.8, 3
TEXT_BYTES, PREFILL = 256, 32  # of the texts on which predictions are compared

TURN = 32  # steps of a decoder in a row when several are measured


def open_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnx_ai_rt.register(onnxruntime.SessionOptions())
    options.intra_op_num_threads = 1  # the model is too small for more
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class DenseDecoder:
    """The model as it was exported: past tensors in, present tensors out, all of them copied at each step."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self._past = {
            spec.name: np.zeros((1, spec.shape[1], 0, spec.shape[3]), np.float32)
            for spec in session.get_inputs()
            if spec.name.startswith("past_")
        }

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._past.values())

    def step(self, tokens: list[int]) -> np.ndarray:
        """Logits behind each token, ``[tokens, 256]``."""
        logits, *present = self._session.run(None, {"input_ids": np.array([tokens], np.int64), **self._past})
        names = (spec.name.replace("present_", "past_") for spec in self._session.get_outputs()[1:])
        self._past = dict(zip(names, present, strict=True))
        return logits[0]


class PagedDecoder:
    """The converted model with its caches."""

    def __init__(self, session: onnxruntime.InferenceSession, policy: ReformatPolicy | None = None) -> None:
        self._session = session
        self.cache = PagedKVCache.for_model(session, policy=policy)

    @property
    def nbytes(self) -> int:
        return self.cache.nbytes

    def step(self, tokens: list[int]) -> np.ndarray:
        """Logits behind each token, ``[tokens, 256]``."""
        return self.cache.run(self._session, {"input_ids": np.array([tokens], np.int64)})["logits"][0]


Decoder = DenseDecoder | PagedDecoder


@dataclass(frozen=True)
class Mode:
    """A way to keep the cache; `new` makes a decoder with an empty one."""

    name: str
    new: Callable[[], Decoder]


def make_modes() -> list[Mode]:
    """The exported model first, then float pages, then smaller ones."""
    model = onnx.load(MODEL)
    paged = onnx_ai_rt.to_paged(model)
    print(paged)
    dense_session, float_session = open_session(model), open_session(paged.model)
    # Formats with fixed scales need them from somewhere: here, the caches of a text.
    sample = PagedDecoder(float_session)
    sample.step(unseen_texts(1)[0])

    def quantized(key_format: str, value_format: str) -> onnxruntime.InferenceSession:
        scales: dict[str, Any] = sample.cache.scales(key_format, value_format)
        result = onnx_ai_rt.to_paged(model, key_format=key_format, value_format=value_format, **scales)
        return open_session(result.model)

    int8_session, int4_session = quantized("INT8", "INT8"), quantized("INT4", "INT4")
    policy = ReformatPolicy(older_than=64, key_format="INT8", value_format="INT4", every=32)
    return [
        Mode("exported model", lambda: DenseDecoder(dense_session)),
        Mode("float pages", lambda: PagedDecoder(float_session)),
        Mode("INT8 pages", lambda: PagedDecoder(int8_session)),
        Mode("INT4 pages", lambda: PagedDecoder(int4_session)),
        Mode("mixed pages", lambda: PagedDecoder(float_session, policy)),  # 64 float tokens, older ones INT8 and INT4
    ]


def unseen_texts(count: int) -> list[list[int]]:
    """Pieces of source code that the model was not trained on."""
    text = b"".join(path.read_bytes() for path in sorted(Path(http.__file__).parent.glob("*.py")))
    starts = np.linspace(0, len(text) - TEXT_BYTES, count + 1)[1:].astype(int)
    return [list(text[start : start + TEXT_BYTES]) for start in starts]


def generate(decoder: Decoder, prompt: bytes, count: int) -> tuple[bytes, float]:
    """Continues a prompt; a token is a byte. Returns the new tokens and how many came a second."""
    rng = np.random.default_rng(SEED)
    logits = decoder.step(list(prompt))[-1]
    new = []
    begin = time.perf_counter()
    for _ in range(count):
        p = np.exp((logits - logits.max()).astype(np.float64) / TEMPERATURE)
        new.append(int(rng.choice(len(p), p=p / p.sum())))
        logits = decoder.step(new[-1:])[-1]
    return bytes(new), count / (time.perf_counter() - begin)


def predict(decoder: Decoder, text: list[int]) -> np.ndarray:
    """Logits behind every byte of a text, read token by token after the first part: ``[bytes, 256]``."""
    parts = [decoder.step(text[:PREFILL]), *(decoder.step([token]) for token in text[PREFILL:])]
    return np.concatenate(parts)


def loss(logits: list[np.ndarray], texts: list[list[int]]) -> float:
    """Mean of -log p(next byte) in nats, over what was read token by token."""
    losses = []
    for values, text in zip(logits, texts, strict=True):
        rows = values[PREFILL:-1].astype(np.float64)
        rows -= rows.max(-1, keepdims=True)
        log_p = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
        losses.append(-log_p[np.arange(len(rows)), text[PREFILL + 1 :]])
    return float(np.mean(losses))


def compare(modes: list[Mode], prompt: bytes, tokens: int, texts: list[list[int]]) -> bool:
    """Prints text and numbers of each mode; returns whether float pages gave the tokens of the exported model."""
    generated, lines = [], []
    float_best: np.ndarray | None = None
    for mode in modes:
        generate(mode.new(), prompt, 16)  # a warm-up, so that the speeds compare
        decoder = mode.new()
        text, speed = generate(decoder, prompt, tokens)
        generated.append(text)
        print(f"\n--- {mode.name}\n{(prompt + text).decode(errors='replace')}")
        if isinstance(decoder, PagedDecoder):
            print(f"--- {decoder.cache}")
        logits = [predict(mode.new(), text) for text in texts]
        best = np.concatenate([values[PREFILL:].argmax(-1) for values in logits])
        float_best = best if float_best is None else float_best
        lines.append(
            f"{mode.name:<16}{speed:>10.0f}{decoder.nbytes:>12,}{np.mean(best == float_best):>12.1%}"
            f"{loss(logits, texts):>12.4f}"
        )
    print(f"\n{'':<16}{'tokens/s':>10}{'bytes':>12}{'agreement':>12}{'nats/byte':>12}")
    print("\n".join(lines))
    print(
        f"bytes: of all caches after {len(prompt) + tokens} tokens; agreement: how often the likeliest next byte is "
        f"that of\nthe exported model, on {len(texts)} texts of {TEXT_BYTES} bytes that it has not seen; nats/byte: "
        f"the loss on them"
    )
    same = generated[0] == generated[1]
    print(f"the {tokens} tokens over float pages are those of the exported model: {same}")
    return same


def measure(decoders: list[Decoder], text: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the caches after each token, and milliseconds of each step: ``[tokens, decoders]`` both.

    The decoders take turns of some steps, so that what else the machine does disturbs them all alike.
    """
    nbytes, times = np.zeros((2, len(text), len(decoders)))
    for first in range(0, len(text), TURN):
        for j, decoder in enumerate(decoders):
            for i, token in enumerate(text[first : first + TURN], first):
                begin = time.perf_counter()
                decoder.step([token])
                times[i, j] = 1000 * (time.perf_counter() - begin)
                nbytes[i, j] = decoder.nbytes
    return nbytes, times


def draw(path: Path, modes: list[Mode], context: int) -> None:
    """Bytes and step times against the length of the context."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    texts = unseen_texts(8)
    tokens = [token for i in range(context // TEXT_BYTES + 1) for token in texts[i % len(texts)]][:context]
    nbytes, times = measure([mode.new() for mode in modes], tokens)
    window = max(1, context // 32)
    starts = range(0, context - window + 1, window)
    figure, (bytes_axis, time_axis) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for j, mode in enumerate(modes):
        # The exported model's line is above the others: its bytes are those of float pages.
        style = {"zorder": 3, "color": "black", "linestyle": "--"} if j == 0 else {"color": f"C{j - 1}"}
        bytes_axis.plot(np.arange(1, context + 1), nbytes[:, j] / 1024, label=mode.name, **style)
        medians = [np.median(times[start : start + window, j]) for start in starts]
        time_axis.plot([start + window / 2 for start in starts], medians, marker=".", label=mode.name, **style)
    bytes_axis.set_title("Size of all caches")
    bytes_axis.set_ylabel("KiB")
    bytes_axis.set_ylim(bottom=0)
    time_axis.set_title(f"Time of a step (median of {window})")
    time_axis.set_ylabel("milliseconds a token")
    time_axis.set_ylim(bottom=0)
    for axis in (bytes_axis, time_axis):
        axis.set_xlabel("context length (tokens)")
        axis.set_xlim(0, context)
        axis.grid(True, color="0.9")
        axis.legend()
    figure.suptitle("Decoding token by token: a language model of 4 layers, 2 key/value heads of width 32, one thread")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"drew {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("--tokens", type=int, default=200, help="how many to generate")
    parser.add_argument("--texts", type=int, default=4, help="on how many unseen texts predictions are compared")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw bytes and step times into this file")
    parser.add_argument("--context", type=int, default=4096, help="how many tokens the figure covers")
    arguments = parser.parse_args()
    modes = make_modes()
    same = compare(modes, arguments.prompt.encode(), arguments.tokens, unseen_texts(arguments.texts))
    if arguments.figure:
        draw(arguments.figure, modes, arguments.context)
    if not same:
        sys.exit("the tokens over float pages differ from those of the exported model")


if __name__ == "__main__":
    main()
