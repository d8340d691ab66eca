"""Compresses pages of a key/value cache: first a cache small enough to check by hand, then a language model's.

python examples/plot_quantize_paged_cache.py [--sequences N] [--figures FOLDER]

1. One ONNX graph quantizes a page to 4-bit codes and restores it; every number is checked.
2. A language model reads source code that it has not seen, its caches are stored in each format and restored, and it
   goes on from there: how large the errors are, what the caches weigh, and what it costs in predictions.

With --figures it draws both with matplotlib.
"""

from __future__ import annotations

import argparse
import dataclasses
import http
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import onnx_ai_rt
from onnx_ai_rt import PagedCache, PagedCacheProto

MODEL = Path(__file__).parent / "data" / "tiny_pycode_lm.onnx"
LAYERS = 4
PROMPT_BYTES, TOTAL_BYTES = 192, 256  # the cache of the first is compressed, the rest is predicted from it
PAGE_SIZE = 32
FORMATS = [(f, f) for f in ("FLOAT", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2")]
FORMATS.insert(5, ("INT8", "INT4"))

KEY = np.array([-1.3, -0.4, 0.3, 1.2], np.float32)
VALUE = np.array([-0.8, -0.3, 0.2, 0.7], np.float32)
KEY_SCALE, KEY_ZERO = 0.25, 0  # INT4
VALUE_SCALE, VALUE_ZERO = 0.125, 8  # UINT4


def session_of(model: str | bytes) -> onnxruntime.InferenceSession:
    """A session with this library's operators."""
    options = onnx_ai_rt.register(onnxruntime.SessionOptions())
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


# --- 1. A cache that can be checked by hand


def small_cache() -> PagedCacheProto:
    """Two pages of two rows; the second holds one token, and NaN in the unused row."""
    cache = PagedCacheProto()
    first = np.linspace(-0.5, 0.5, 8, dtype=np.float32).reshape(1, 1, 2, 4)
    unused = np.full(4, np.nan, np.float32)
    pages = [(0, 2, first, -first), (2, 1, np.concatenate([KEY, unused]), np.concatenate([VALUE, unused]))]
    for start, length, key, value in pages:
        page = cache.blocks.add(start=start, length=length)
        page.key.CopyFrom(numpy_helper.from_array(key.reshape(1, 1, 2, 4)))
        page.value.CopyFrom(numpy_helper.from_array(value.reshape(1, 1, 2, 4)))
    return cache


def quantize_and_restore() -> onnx.ModelProto:
    """cache -> quantized (page 1 in INT4 and UINT4) -> restored (page 1 in FLOAT16 and BFLOAT16)."""
    constants = {
        "pages": np.array([1], np.int64),
        "key_scale": np.array(KEY_SCALE, np.float32),
        "key_zero": np.array(KEY_ZERO, ml_dtypes.int4),  # its type is the format of the keys
        "value_scale": np.array(VALUE_SCALE, np.float32),
        "value_zero": np.array(VALUE_ZERO, ml_dtypes.uint4),
        "one": np.array(1, np.float32),
        "to_float16": np.array(0, np.float16),
        "to_bfloat16": np.array(0, ml_dtypes.bfloat16),
    }
    quantize = ["cache", "pages", "key_scale", "key_zero", "value_scale", "value_zero"]
    restore = ["quantized", "pages", "one", "to_float16", "one", "to_bfloat16"]
    graph = helper.make_graph(
        [
            helper.make_node("QuantizePagedCache", quantize, ["quantized"], domain="ai.rt"),
            helper.make_node("QuantizePagedCache", restore, ["restored"], domain="ai.rt"),
        ],
        "quantize_and_restore",
        [helper.make_tensor_value_info("cache", TensorProto.UINT8, ["cache_bytes"])],
        [
            helper.make_tensor_value_info("quantized", TensorProto.UINT8, ["quantized_bytes"]),
            helper.make_tensor_value_info("restored", TensorProto.UINT8, ["restored_bytes"]),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("ai.rt", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check(what: str, got: object, expected: object) -> None:
    """Prints a line; ends the program when the two differ."""
    same = bool(np.array_equal(got, expected)) if isinstance(got, np.ndarray) else got == expected
    print(f"  {'ok   ' if same else 'WRONG'} {what}: {expected}")
    if not same:
        raise SystemExit(f"{what}: expected {expected}, got {got}")


def restored_rows(cache: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both rows of page 1, of the keys and of the values."""
    page = PagedCacheProto.FromString(cache.tobytes()).blocks[1]
    key, value = (numpy_helper.to_array(tensor).astype(np.float32)[0, 0] for tensor in (page.key, page.value))
    return key, value


def run_small_example() -> tuple[np.ndarray, np.ndarray]:
    """Quantizes and restores the small cache, checks every number, and returns the restored token."""
    cache = small_cache()
    data = np.frombuffer(cache.SerializeToString(), np.uint8)
    session = session_of(quantize_and_restore().SerializeToString())
    quantized, restored = session.run(None, {"cache": data})

    print("One page of two, to 4 bits and back:")
    before, middle, after = (PagedCacheProto.FromString(c.tobytes()) for c in (data, quantized, restored))
    for title, parsed in (("quantized", middle), ("restored", after)):
        same = parsed.blocks[0].SerializeToString() == before.blocks[0].SerializeToString()
        check(f"page 0 of the {title} cache is unchanged", same, True)
    page = middle.blocks[1]
    check("bytes of the keys", len(page.encoded_key.raw_data), 4)
    check("bytes of the values", len(page.encoded_value.raw_data), 4)
    check("codes of the keys", page.encoded_key.raw_data.hex(" "), "eb 51 00 00")
    check("codes of the values", page.encoded_value.raw_data.hex(" "), "62 ea 88 88")
    key, value = restored_rows(restored)
    check("restored key", key[0], np.array([-1.25, -0.5, 0.25, 1.25], np.float32))
    check("restored value", value[0], np.array([-0.75, -0.25, 0.25, 0.75], np.float32))
    check("unused row", np.concatenate([key[1], value[1]]), np.zeros(8, np.float32))
    again = session.run(["restored"], {"cache": np.frombuffer(middle.SerializeToString(), np.uint8)})[0]
    check("restored again from the quantized cache", again.tobytes() == restored.tobytes(), True)
    return key[0], value[0]


# --- 2. The cache of a language model


@dataclasses.dataclass(frozen=True)
class Result:
    """What a format does to the model: bits a value, bytes, relative errors, loss in nats a byte."""

    key_format: str
    value_format: str
    bits: float
    nbytes: int
    key_error: float
    value_error: float
    loss: float

    @property
    def name(self) -> str:
        return self.key_format if self.key_format == self.value_format else f"{self.key_format}/{self.value_format}"


def held_out_text(sequences: int) -> np.ndarray:
    """Pieces of the standard library's http package, evenly spread, int64 [sequences, TOTAL_BYTES]."""
    files = sorted(Path(http.__file__).parent.glob("*.py"))
    text = np.frombuffer(b"".join(f.read_bytes() for f in files), np.uint8).astype(np.int64)
    starts = np.linspace(0, len(text) - TOTAL_BYTES, sequences).astype(int)
    return np.stack([text[s : s + TOTAL_BYTES] for s in starts])


def predict(
    session: onnxruntime.InferenceSession, tokens: np.ndarray, past: list[np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits [batch, tokens, 256], and the cache: key and value of each layer in turn."""
    names = [f"past_{side}_{layer}" for layer in range(LAYERS) for side in ("key", "value")]
    outputs = ["logits", *(name.replace("past", "present") for name in names)]
    logits, *present = session.run(outputs, {"input_ids": tokens, **dict(zip(names, past, strict=True))})
    return logits, present


def loss_of(logits: np.ndarray, following: np.ndarray) -> float:
    """Mean of -log p(next byte), in nats."""
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -float(np.take_along_axis(log_p, following[..., None], -1).mean())


def relative_error(restored: list[np.ndarray], original: list[np.ndarray]) -> float:
    """Root-mean-square of the differences over that of the numbers."""
    difference = sum(float(np.sum((a - b).astype(np.float64) ** 2)) for a, b in zip(restored, original, strict=True))
    return float(np.sqrt(difference / sum(float(np.sum(b.astype(np.float64) ** 2)) for b in original)))


def measure(sequences: int) -> list[Result]:
    """Every format on the caches of all sequences and layers."""
    session = session_of(str(MODEL))
    text = held_out_text(sequences)
    empty = [np.zeros((sequences, 2, 0, 32), np.float32)] * (2 * LAYERS)
    _, original = predict(session, text[:, :PROMPT_BYTES], empty)
    caches = [  # one for each layer and sequence
        [PagedCache.from_dense(k[i : i + 1], v[i : i + 1], PAGE_SIZE) for i in range(sequences)]
        for k, v in zip(original[::2], original[1::2], strict=True)
    ]
    results = []
    for key_format, value_format in FORMATS:
        past, nbytes, values = [], 0, 0
        for layer in caches:
            stored = [cache.quantize(key_format, value_format) for cache in layer]
            nbytes += sum(cache.nbytes for cache in stored)
            values += sum(cache.statistics.values for cache in stored)
            restored = [cache.to_dense() for cache in stored]
            past += [np.concatenate([pair[side] for pair in restored]) for side in (0, 1)]
        logits, _ = predict(session, text[:, PROMPT_BYTES:-1], past)
        results.append(
            Result(
                key_format,
                value_format,
                8 * nbytes / values,
                nbytes,
                relative_error(past[::2], original[::2]),
                relative_error(past[1::2], original[1::2]),
                loss_of(logits, text[:, PROMPT_BYTES + 1 :]),
            )
        )
    return results


def print_results(results: list[Result], sequences: int) -> None:
    predicted = TOTAL_BYTES - PROMPT_BYTES - 1
    print(f"\nA language model on {sequences} pieces of the http package, caches of {PROMPT_BYTES} tokens,")
    print(f"then {predicted} predictions each; pages of {PAGE_SIZE} tokens, a scale for each page and side:")
    print(
        f"  {'format':<11}{'bits/value':>11}{'KiB':>9}{'saved':>8}"
        f"{'K error':>10}{'V error':>10}{'nats/byte':>11}{'more':>9}"
    )
    float_run = results[0]
    for r in results:
        print(
            f"  {r.name:<11}{r.bits:>11.2f}{r.nbytes / 1024:>9.1f}{1 - r.nbytes / float_run.nbytes:>8.1%}"
            f"{r.key_error:>10.2e}{r.value_error:>10.2e}{r.loss:>11.4f}{r.loss - float_run.loss:>+9.4f}"
        )


# --- Figures


def draw_token(path: Path, key: np.ndarray, value: np.ndarray) -> None:
    """Original and restored components of the token of page 1."""
    import matplotlib.pyplot as plt

    panels = (
        ("Key: INT4, scale 0.25, zero point 0", KEY, key, (np.arange(-8, 8) - KEY_ZERO) * KEY_SCALE),
        ("Value: UINT4, scale 0.125, zero point 8", VALUE, value, (np.arange(16) - VALUE_ZERO) * VALUE_SCALE),
    )
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
    for axis, (title, original, restored, levels) in zip(axes, panels, strict=True):
        for i, level in enumerate(levels):
            axis.axhline(level, color="0.88", linewidth=0.8, zorder=0, label=None if i else "values of the 16 codes")
        x = np.arange(4)
        left, right = x - 0.1, x + 0.1
        axis.plot([left, right], [original, restored], color="tab:red", linewidth=1.5, zorder=1)
        axis.plot(left, original, "o", color="tab:blue", markersize=8, label="original (float)")
        axis.plot(right, restored, "D", color="tab:orange", markersize=7, label="restored from 4 bits")
        axis.plot([], [], color="tab:red", linewidth=1.5, label="error")
        axis.set_title(title)
        axis.set_xticks(x)
        axis.set_xlim(-0.5, 3.5)
        axis.set_xlabel("component of the head (index)")
        axis.set_ylabel("component (no unit)")
        reach = 1.15 * max(np.abs(original).max(), np.abs(restored).max())
        axis.set_ylim(-reach, reach)
        axis.legend(loc="upper left")
    figure.suptitle("One token of a paged cache, stored in 4 bits and restored")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_errors(path: Path, results: list[Result]) -> None:
    """Error of keys and values, and cost in predictions, against bits a value."""
    import matplotlib.pyplot as plt

    stored = results[1:]  # float has no error
    figure, (errors, losses) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    bits = [r.bits for r in stored]
    beside = 0.15  # the two would hide each other
    errors.semilogy([b - beside for b in bits], [r.key_error for r in stored], "o", color="tab:blue", label="keys")
    errors.semilogy(
        [b + beside for b in bits], [r.value_error for r in stored], "s", color="tab:orange", label="values"
    )
    errors.set_ylim(1e-4, 2)
    errors.set_title("Error of the restored cache")
    errors.set_ylabel("root-mean-square error, relative to the numbers")
    more = [r.loss - results[0].loss for r in stored]
    losses.axhline(0, color="0.6", linewidth=0.8)
    losses.plot(bits, more, "^", color="tab:green", label="stored in this format")
    losses.set_yscale("symlog", linthresh=1e-3)  # differences below this are noise of either sign
    losses.set_ylim(-1e-3, 3)
    losses.set_title("Cost in the model's predictions")
    losses.set_ylabel(f"loss above the {results[0].loss:.3f} of the float cache (nats a byte)")
    for axis, heights in (
        (errors, [max(r.key_error, r.value_error) for r in stored]),
        (losses, more),
    ):
        for r, height in zip(stored, heights, strict=True):
            # Two formats have the same bits: the label of the lower one goes below.
            below = any(abs(o.bits - r.bits) < 0.5 and h > height for o, h in zip(stored, heights, strict=True))
            axis.annotate(
                r.name, (r.bits, height), xytext=(9, -12 if below else 5), textcoords="offset points", fontsize=9
            )
        axis.set_xlabel("bits a value, headers and scales included")
        axis.set_xlim(0, 20)
        axis.grid(True, which="major", color="0.9")
        axis.legend()
    figure.suptitle("A small language model's cache in eight formats, and with keys in INT8 and values in INT4")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sequences", type=int, default=32, help="pieces of text that the model reads")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="draw figures into this folder")
    arguments = parser.parse_args()
    key, value = run_small_example()
    results = measure(arguments.sequences)
    print_results(results, arguments.sequences)
    if arguments.figures:
        arguments.figures.mkdir(parents=True, exist_ok=True)
        draw_token(arguments.figures / "quantize_token.png", key, value)
        draw_errors(arguments.figures / "quantize_errors.png", results)


if __name__ == "__main__":
    main()
