"""The decode loop in ONNX Runtime sessions: converted models and PagedKVCache together."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from rewrite.decoders import HIDDEN, decoder
from rewrite.running import run_dense, steps

import onnx_ai_rt
from onnx_ai_rt import PagedKVCache, ReformatPolicy

SMALL_MODEL = Path(__file__).parents[2] / "examples" / "data" / "tiny_pycode_lm.onnx"
PROMPT = list(b"def __init__(self, ")


def open_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnx_ai_rt.register(onnxruntime.SessionOptions())
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@cache
def small_session(key_format: str | None = None, value_format: str | None = None) -> onnxruntime.InferenceSession:
    """The language model, converted; with quantized pages its scales come from a float run."""
    model = onnx.load(SMALL_MODEL)
    scales = {}
    if key_format and value_format:
        sample = PagedKVCache.for_model(small_session())
        step(sample, PROMPT * 4)
        scales = sample.scales(key_format, value_format)
    paged = onnx_ai_rt.to_paged(model, key_format=key_format, value_format=value_format, **scales)
    return open_session(paged.model)


def step(cache: PagedKVCache, tokens: list[int], session: onnxruntime.InferenceSession | None = None) -> np.ndarray:
    """Logits behind each token."""
    return cache.run(session or small_session(), {"input_ids": np.array([tokens], np.int64)})["logits"][0]


def generate(cache: PagedKVCache, tokens: list[int], count: int) -> list[int]:
    """The likeliest continuation."""
    new = []
    for _ in range(count):
        new.append(int(step(cache, tokens)[-1].argmax()))
        tokens = new[-1:]
    return new


def exported_tokens(count: int) -> list[int]:
    """The likeliest continuation of PROMPT by the model as it was exported."""
    session = open_session(onnx.load(SMALL_MODEL))
    past = {spec.name: np.zeros((1, 2, 0, 32), np.float32) for spec in session.get_inputs() if spec.name != "input_ids"}
    tokens, new = PROMPT, []
    for _ in range(count):
        logits, *present = session.run(None, {"input_ids": np.array([tokens], np.int64), **past})
        past = dict(zip(past, present, strict=True))
        new.append(int(logits[0, -1].argmax()))
        tokens = new[-1:]
    return new


def test_float_pages_give_the_tokens_of_the_exported_model() -> None:
    loop = PagedKVCache.for_model(small_session(), block_size=16)
    assert generate(loop, PROMPT, 100) == exported_tokens(100)
    assert loop.tokens == len(PROMPT) + 99
    # 19 tokens of the prompt, then by one: pages are merged as a whole.
    assert [page.length for page in loop.layer(3).pages] == [19, *[16] * 6, *[1] * 3]


@pytest.mark.parametrize("style", ["concat", "inside"])
@pytest.mark.parametrize(
    "options", [{}, {"rank": 3}, {"mask": "window"}, {"lengths_from": "whole"}], ids=lambda o: str(o)
)
def test_converted_decoders(style: str, options: dict) -> None:
    model = decoder(style, **options)
    session = open_session(onnx_ai_rt.to_paged(model).model)
    loop = PagedKVCache.for_model(session, block_size=4)
    xs = steps(2, HIDDEN)
    for x, expected in zip(xs, run_dense(model, xs), strict=True):
        np.testing.assert_allclose(loop.run(session, {"x": x})["y"], expected, rtol=1e-4, atol=1e-4)
    assert loop.tokens == sum(x.shape[1] for x in xs)


def test_a_step_gives_as_many_bytes_however_long_the_past_is() -> None:
    loop = PagedKVCache.for_model(small_session())
    sizes = set()
    for _ in range(70):
        session = small_session()
        outputs = session.run(["appended_0"], {"input_ids": np.array([[65]], np.int64), **loop.inputs()})
        sizes.add(outputs[0].size)
        step(loop, [65])
    assert max(sizes) - min(sizes) <= 2  # the token's number takes more bytes when it is larger


def test_fork_and_truncate() -> None:
    """Continuations of a shared past, and of a past that was cut, are those of a past made anew."""
    stem = PagedKVCache.for_model(small_session())
    step(stem, PROMPT)
    one, two = stem.fork(), stem.fork()
    for branch, text in ((one, list(b"name):")), (two, list(b"x=1, y")), (stem, list(b"*args"))):
        for token in text[:-1]:
            step(branch, [token])
        anew = PagedKVCache.for_model(small_session())
        step(anew, PROMPT + text[:-1])
        np.testing.assert_allclose(step(branch, text[-1:]), step(anew, text[-1:]), rtol=1e-3, atol=1e-3)
    one.truncate(len(PROMPT) - 3)
    anew = PagedKVCache.for_model(small_session())
    step(anew, PROMPT[:-3])
    for token in [*PROMPT[-3:], 65] * 6:
        np.testing.assert_allclose(step(one, [token]), step(anew, [token]), rtol=1e-3, atol=1e-3)


def test_save_and_load(tmp_path: Path) -> None:
    loop = PagedKVCache.for_model(small_session())
    generate(loop, PROMPT, 10)
    loop.save(tmp_path / "chat.kv")
    loaded = PagedKVCache.load(tmp_path / "chat.kv")
    assert generate(loaded, [32], 20) == generate(loop, [32], 20)


@pytest.mark.parametrize("formats", [("INT8", "INT8"), ("INT8", "UINT4"), ("FLOAT16", "BFLOAT16")])
def test_models_that_append_other_formats(formats: tuple[str, str]) -> None:
    session = small_session(*formats)
    loop, exact = PagedKVCache.for_model(session, block_size=16), PagedKVCache.for_model(small_session())
    for token in PROMPT * 2:
        got, expected = step(loop, [token], session), step(exact, [token])
    assert loop.statistics.formats == {formats: 4 * (2 + 1 + 2)}
    assert loop.nbytes < exact.nbytes
    error = np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2))
    assert error < {"INT8": 0.05, "UINT4": 0.2, "BFLOAT16": 0.01}[formats[1]]


def test_policy() -> None:
    policy = ReformatPolicy(older_than=32, key_format="INT8", value_format="INT8", every=16)
    loop, exact = (PagedKVCache.for_model(small_session(), policy=chosen, block_size=16) for chosen in (policy, None))
    for token in PROMPT * 8:
        got, expected = step(loop, [token]), step(exact, [token])
    formats = loop.statistics.formats
    assert formats[("INT8", "INT8")] > 4 * 5
    assert formats[("FLOAT", "FLOAT")] >= 4 * 2
    error = np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2))
    assert 0 < error < 0.05


def test_present_instead_of_appended() -> None:
    paged = onnx_ai_rt.to_paged(decoder(), outputs="present")
    session = open_session(paged.model)
    loop = PagedKVCache.for_model(session)
    with pytest.raises(ValueError, match="expected a model with outputs 'appended', got one with 'present' alone"):
        loop.run(session, {"x": steps(1, HIDDEN)[0]})
    both = open_session(onnx_ai_rt.to_paged(decoder(), outputs="both").model)
    loop = PagedKVCache.for_model(both)
    for x in steps(1, HIDDEN):
        assert list(loop.run(both, {"x": x})) == ["y"]
