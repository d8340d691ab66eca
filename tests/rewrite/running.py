"""Runs a decoder step by step, before and after its conversion."""

from __future__ import annotations

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import onnx_ai_rt

STEPS = (3, 1, 1, 4, 1, 2)


def steps(batch: int, hidden: int, dtype: np.dtype = np.float32) -> list[np.ndarray]:
    """Inputs x of a prompt and some steps."""
    rng = np.random.default_rng(7)
    return [rng.normal(size=(batch, count, hidden)).astype(dtype) for count in STEPS]


def run_dense(model: onnx.ModelProto, xs: list[np.ndarray]) -> list[np.ndarray]:
    """Outputs y of the model with past and present tensors."""
    session = ReferenceEvaluator(model, new_ops=onnx_ai_rt.reference_ops)
    cache = {}
    for value in model.graph.input:
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.name.startswith("past_"):
            dims[0], dims[1 if len(dims) == 3 else 2] = xs[0].shape[0], 0
            cache[value.name] = np.zeros(dims, xs[0].dtype)
    names = [value.name.replace("present", "past") for value in model.graph.output[1:]]
    results = []
    for x in xs:
        with np.errstate(divide="ignore"):  # how one mask makes its infinity
            y, *present = session.run(None, {"x": x, **cache})
        cache = dict(zip(names, present, strict=True))
        results.append(y)
    return results


def run_paged(paged: onnx_ai_rt.PagedModel, xs: list[np.ndarray]) -> list[np.ndarray]:
    """Outputs y of the converted model; a cache is what was appended so far."""
    session = ReferenceEvaluator(paged.model, new_ops=onnx_ai_rt.reference_ops)
    caches = {names.past: np.zeros(0, np.uint8) for names in paged.caches}
    results = []
    for x in xs:
        outputs = dict(zip(session.output_names, session.run(None, {"x": x, **caches}), strict=True))
        for names in paged.caches:
            if names.appended:
                grown = np.concatenate([caches[names.past], outputs[names.appended]])
            if names.present:
                assert not names.appended or np.array_equal(grown, outputs[names.present])
                grown = outputs[names.present]
            caches[names.past] = grown
        results.append(outputs["y"])
    return results
