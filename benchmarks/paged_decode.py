"""One decoding step over pages in several formats, beside Attention on the same floats without a cache.

    python -m benchmarks.paged_decode [--tokens 4096] [--q-heads 32] [--kv-heads 8] [--head-size 128] [--page 64]

On one thread the thread's own time counts, so that other processes disturb as little as they can.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from benchmarks import timing
from benchmarks.contender import Contender
from onnx_ai_rt import PagedKVCache, _core

Array = npt.NDArray[np.float32]
Cache = npt.NDArray[np.uint8]
Encoding = tuple[float, int, int] | None

# Codes of standard normal numbers.
ENCODINGS: dict[str, Encoding] = {
    "FLOAT": None,
    "BFLOAT16": (1.0, TensorProto.BFLOAT16, 0),
    "INT8": (0.03, TensorProto.INT8, 0),
    "INT4": (0.4, TensorProto.INT4, 0),
}
REFERENCE = "FLOAT pages"


def append(past: Cache, k: Array, v: Array, encoding: Encoding, block_size: int) -> Cache:
    """The new blocks; of the attention, as little as can be."""
    attributes = {"block_size": block_size, "left_window_size": 0}
    encodings = {"key_encoding": encoding, "value_encoding": encoding}
    got = _core.paged_attention(past, np.zeros_like(k), k, v, attributes=attributes, request=["appended"], **encodings)
    appended: Cache = got["appended"]
    return appended


def full_pages(k: Array, v: Array, encoding: Encoding, page: int) -> Cache:
    """A cache of full pages, and one with the rest."""
    return append(np.empty(0, np.uint8), k, v, encoding, page)


def token_by_token(k: Array, v: Array, encoding: Encoding, page: int) -> Cache:
    """The same tokens as the decode loop leaves them: steps of one token, merged to pages on its way."""
    cache = PagedKVCache(1, block_size=page)
    for t in range(k.shape[2]):
        rows = [np.ascontiguousarray(x[:, :, t : t + 1]) for x in (k, v)]
        cache.append([append(cache.inputs()["cache_0"], *rows, encoding, 1)])
    return cache.layer(0).to_array()


def timed(work: Callable[[], object], threads: int) -> float:
    clock = time.thread_time if threads == 1 else time.perf_counter
    begin = clock()
    work()
    return clock() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--q-heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--page", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--target", default="", help="instruction set; the best one when left out")
    options = parser.parse_args()
    _core.choose_cpu_target(options.target)
    rng = np.random.default_rng(0)
    # The cache that was made token by token ends at its worst: the pages at its end are not merged yet.
    tokens = options.tokens + options.page - 1
    shape = (1, options.kv_heads, tokens + 1, options.head_size)
    keys, values = (rng.standard_normal(shape, np.float32) for _ in range(2))
    k, v = (np.ascontiguousarray(x[:, :, :tokens]) for x in (keys, values))
    new = [np.ascontiguousarray(x[:, :, tokens:]) for x in (keys, values)]
    q = rng.standard_normal((1, options.q_heads, 1, options.head_size), np.float32)

    inputs = {"Q": q, "K": keys, "V": values}
    work: dict[str, Callable[[], object]] = {
        "Attention": functools.partial(_core.attention, inputs, {}, [], options.threads)
    }
    sizes = {"Attention": keys.nbytes + values.nbytes}
    for kind, make in (("pages", full_pages), ("token by token", token_by_token)):
        for name, encoding in ENCODINGS.items():
            cache = make(k, v, encoding, options.page)
            step = functools.partial(_core.paged_attention, cache, q, *new, request=["appended"])
            encodings = {"key_encoding": encoding, "value_encoding": encoding}
            work[f"{name} {kind}"] = functools.partial(step, threads=options.threads, **encodings)
            sizes[f"{name} {kind}"] = cache.nbytes

    effort = timing.Effort(rounds=options.rounds, turn=0.02, patience=60.0)
    contenders = [
        Contender(name, options.threads, functools.partial(timed, run, options.threads)) for name, run in work.items()
    ]
    samples = {sample.contender.name: sample for sample in timing.measure(contenders, effort)}
    print(
        f"{tokens} tokens, {options.q_heads}/{options.kv_heads} heads of {options.head_size}, pages of {options.page}, "
        f"{options.threads} threads, {_core.chosen_cpu_target()}; medians of {options.rounds} rounds"
    )
    for name, sample in samples.items():
        rate = sizes[name] / sample.median / 1e6
        ratio = sample.ratio_to(samples[REFERENCE])[0]
        print(f"{name:24} {sample.median:8.3f} ms  {rate:6.1f} GB/s  {ratio:5.2f} of {REFERENCE}")


if __name__ == "__main__":
    main()
