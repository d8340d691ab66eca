"""Registering the library with session options, in every order that programs use."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from support.attention_calls import AttentionCall, Geometry, make_call
from support.sessions import (
    DOMAINS,
    NEWEST_OPSET,
    call_model,
    check,
    counted,
    make_options,
    make_session,
    run,
    run_call,
)

import onnx_ai_rt

CALL = make_call(Geometry(B=2, Hq=4, Hkv=2, S=3, N=5), np.random.default_rng(0), is_causal=1)
EXPECTED = CALL.oracle()[0]
OVERRIDE = "onnx_ai_rt.override_onnx_attention"


def other_call(seed: int) -> AttentionCall:
    return make_call(Geometry(B=1, Hq=4, Hkv=2, S=7, N=33, D=16, Dv=24), np.random.default_rng(seed))


@pytest.mark.parametrize("domain", DOMAINS)
def test_both_domains_run_on_this_library(domain: str) -> None:
    onnx_ai_rt.kernel_runs(reset=True)
    check(run_call(CALL, domain=domain)["Y"], EXPECTED)
    assert counted("Attention" if domain == "" else "ai.rt::Attention") == 1
    assert sum(r.count for r in onnx_ai_rt.kernel_runs()) == 1


def test_register_returns_the_options() -> None:
    options = ort.SessionOptions()
    assert onnx_ai_rt.register(options) is options


def test_register_wants_session_options() -> None:
    with pytest.raises(TypeError, match=r"register: session_options must be onnxruntime.SessionOptions, got .*dict"):
        onnx_ai_rt.register({})  # type: ignore[arg-type]


@pytest.mark.skipif(NEWEST_OPSET < 23, reason=f"onnxruntime {ort.__version__} has no Attention of its own")
@pytest.mark.parametrize("by_entry", [False, True])
def test_override_switched_off_leaves_onnxruntimes_attention(by_entry: bool) -> None:
    settings = {"entries": {OVERRIDE: "0"}} if by_entry else {"override": False}
    onnx_ai_rt.kernel_runs(reset=True)
    call = make_call(Geometry(B=2, Hq=4, Hkv=2, S=3, N=5), np.random.default_rng(0))
    check(run_call(call, **settings)["Y"], call.oracle()[0])
    assert onnx_ai_rt.kernel_runs() == []
    check(run_call(call, domain="ai.rt", **settings)["Y"], call.oracle()[0])
    assert counted("ai.rt::Attention") == 1


@pytest.mark.skipif(NEWEST_OPSET >= 23, reason=f"onnxruntime {ort.__version__} has its own Attention")
def test_override_switched_off_where_onnxruntime_has_no_attention() -> None:
    with pytest.raises(Exception, match="Attention"):
        run_call(CALL, override=False)
    check(run_call(CALL, domain="ai.rt", override=False)["Y"], EXPECTED)


def test_override_entry_of_1_is_the_default() -> None:
    onnx_ai_rt.kernel_runs(reset=True)
    run_call(CALL, entries={OVERRIDE: "1"})
    assert counted("Attention") == 1


def test_override_entry_of_another_value_is_an_error() -> None:
    with pytest.raises(Exception, match=f"{OVERRIDE} must be 0 or 1, got 'off'"):
        make_options(entries={OVERRIDE: "off"})


def test_registering_twice_is_harmless() -> None:
    options = make_options()
    onnx_ai_rt.register(options)
    for _ in range(2):  # as a program does that does not go through register()
        options.register_custom_ops_library(onnx_ai_rt.get_library_path())
    for domain in DOMAINS:
        check(run(make_session(call_model(CALL, domain=domain), options), CALL.inputs)["Y"], EXPECTED)


def test_second_registration_changes_nothing() -> None:
    options = make_options(override=False)
    onnx_ai_rt.register(options, override_onnx_attention=True)
    onnx_ai_rt.kernel_runs(reset=True)
    run(make_session(call_model(CALL, domain="ai.rt"), options), CALL.inputs)
    if NEWEST_OPSET >= 23:
        call = make_call(Geometry(Hq=2, Hkv=2, S=3, N=5), np.random.default_rng(0))
        run(make_session(call_model(call), options), call.inputs)
    assert counted("Attention") == 0


@pytest.mark.parametrize("extensions_first", [False, True])
def test_beside_onnxruntime_extensions(extensions_first: bool) -> None:
    extensions = pytest.importorskip("onnxruntime_extensions")
    options = make_options(library=False)
    if extensions_first:
        options.register_custom_ops_library(extensions.get_library_path())
    onnx_ai_rt.register(options)
    if not extensions_first:
        options.register_custom_ops_library(extensions.get_library_path())
    for domain in DOMAINS:
        check(run(make_session(call_model(CALL, domain=domain), options), CALL.inputs)["Y"], EXPECTED)


def test_one_options_object_serves_many_sessions() -> None:
    options = make_options()
    sessions = [make_session(call_model(CALL, domain=domain), options) for domain in DOMAINS for _ in range(5)]
    del options
    gc.collect()
    for session in sessions:
        check(run(session, CALL.inputs)["Y"], EXPECTED)


def test_sessions_with_and_without_the_library_coexist() -> None:
    ours = make_session(call_model(CALL))
    onnx_ai_rt.kernel_runs(reset=True)
    if NEWEST_OPSET >= 23:
        call = make_call(Geometry(Hq=2, Hkv=2, S=3, N=5), np.random.default_rng(0))
        plain = make_session(call_model(call), library=False)
        check(run(plain, call.inputs)["Y"], call.oracle()[0])
    assert counted("Attention") == 0
    check(run(ours, CALL.inputs)["Y"], EXPECTED)
    assert counted("Attention") == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_concurrent_runs_of_one_session(threads: int) -> None:
    calls = [other_call(seed) for seed in range(8)]
    expected = [call.oracle()[0] for call in calls]
    session = make_session(call_model(calls[0]), threads=threads)
    onnx_ai_rt.kernel_runs(reset=True)
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for _ in range(20):
                check(run(session, calls[i].inputs)["Y"], expected[i])
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures[0]
    assert counted("Attention") == 20 * len(calls)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_destruction_in_any_order(order: tuple[int, ...]) -> None:
    options = make_options()
    objects: list[object] = [options]
    sessions = [make_session(call_model(CALL, domain=domain), options) for domain in DOMAINS]
    objects += sessions
    del options, sessions
    for i in order:
        objects[i] = None
        gc.collect()
        for left in objects:
            if isinstance(left, ort.InferenceSession):
                check(run(left, CALL.inputs)["Y"], EXPECTED)
    check(run_call(CALL)["Y"], EXPECTED)


_AT_EXIT = """
import sys
import onnxruntime as ort, onnx_ai_rt
options = ort.SessionOptions()
{registration}
session = ort.InferenceSession(sys.argv[1], options)
{ending}
"""


@pytest.mark.parametrize("ending", ["", "del options", "del session", "import builtins; builtins.kept = session"])
@pytest.mark.parametrize(
    "registration",
    ["onnx_ai_rt.register(options)", "options.register_custom_ops_library(onnx_ai_rt.get_library_path())"],
)
def test_process_ends_cleanly(registration: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(call_model(CALL).SerializeToString())
    program = _AT_EXIT.format(registration=registration, ending=ending)
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr
