"""Which layers int8 costs most: each in turn goes back to fp32, and the error of the whole model is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, helper

from ...engine.spec import ModelSpec
from ..calibration import CalibrationSet
from ..session import KEEP_QDQ, Run, run_of
from ..typed import copied, element_types, prepared
from .layers import Places, int8_places

RUNS = 320
"""Pictures that all trials together may run: with 59 places each sees 5."""

MOST_PICTURES = 8
_TOLD_EVERY = 16


def int8_blame(
    model: ModelProto,
    int8: ModelProto,
    spec: ModelSpec,
    pictures: CalibrationSet,
    report: Callable[[str], None],
) -> dict[str, float]:
    """How much of the error of ``int8`` goes with each node that takes int8 there, most first.

    Errors are relative (RMS), of ``spec.raw_output``, or the share of pixels where that is a mask; 0.02 says that the
    model's error falls by 0.02 when this node alone goes back to fp32. ``int8`` is what ``quantize`` makes of the fp32
    ``model``. The error of a layer's own output would rank others first: what counts is how far it carries.
    """
    model = prepared(model)
    read = {name for node in int8.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    taken = {node.name for node in int8.graph.node if read.intersection(node.input)}
    places = int8_places(model)
    names = [name for name in places.names if name in taken]
    count = max(1, min(MOST_PICTURES, RUNS // max(1, len(names)), len(pictures)))
    pixels = pictures.pixels[:: max(1, len(pictures) // count)][:count]
    wanted = _raw(_run(model, spec), spec, pixels)
    whole = _error(_raw(_run(int8, spec), spec, pixels), wanted)
    found: dict[str, float] = {}
    for done, name in enumerate(names):
        if done % _TOLD_EVERY == 0:
            report(f"int8: looking for the layers that cost most: {done} of {len(names)} tried on {count} pictures.")
        trial = _with_fp32(int8, model, places, name)
        found[name] = whole - _error(_raw(_run(trial, spec), spec, pixels), wanted)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _with_fp32(int8: ModelProto, model: ModelProto, places: Places, name: str) -> ModelProto:
    """The int8 model with the inputs of node ``name`` as they are in fp32."""
    trial = copied(int8)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    here = {tensor.name for tensor in trial.graph.initializer}
    layer = next((layer for layer in places.layers if layer.name == name), None)
    changed = {name} if layer is None else {name, layer.bias_node}
    originals = {node.name: node for node in model.graph.node}
    for node in trial.graph.node:
        if node.name in changed:
            node.input[:] = originals[node.name].input
            missing = [each for each in node.input if each in weights and each not in here]
            trial.graph.initializer.extend(weights[each] for each in missing)
            here.update(missing)
    return trial


def _run(model: ModelProto, spec: ModelSpec) -> Run:
    if all(value.name != spec.raw_output for value in model.graph.output):
        kind = element_types(model)[spec.raw_output]
        model = copied(model)
        model.graph.output.append(helper.make_tensor_value_info(spec.raw_output, kind, None))
    return run_of(model.SerializeToString(), Path(model.graph.name), config=KEEP_QDQ)


def _raw(run: Run, spec: ModelSpec, pixels: NDArray[np.uint8]) -> NDArray[Any]:
    return np.concatenate([run(pixels[index : index + 1])[spec.raw_output] for index in range(len(pixels))])


def _error(got: NDArray[Any], wanted: NDArray[Any]) -> float:
    if wanted.dtype.kind in "iu":
        return float((got != wanted).mean())
    length = float(np.linalg.norm(wanted.astype(np.float64)))
    return float(np.linalg.norm(got.astype(np.float64) - wanted)) / length if length else 0.0
