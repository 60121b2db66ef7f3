"""Which nodes spoil a converted model: its tensors beside those of the fp32 model, on real pictures, in one run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from ..engine.spec import INPUT_NAME
from .calibration import CalibrationSet
from .graph import opset_of, rename, tensor_names
from .session import KEEP_QDQ, run_of
from .typed import at_opset, copied, float_tensors

BATCH = 4
PICTURES = 32
"""Enough to rank nodes; the gate that follows sees all."""

_OTHER = "candidate/"


def blame_of(reference: ModelProto, candidate: ModelProto, folder: Path, pictures: CalibrationSet) -> dict[str, float]:
    """How much each node of the fp32 model errs in the candidate, most first; nodes without blame are left out.

    Blame is the relative error that a node adds to that of its inputs, as far as it reaches a node that reads it: a
    bad tensor that is added to a much larger one does no harm. ``candidate`` has the reference's tensor names and
    computes in float (``rounding.rounded``); ``folder`` is where external data of both lies.
    """
    errors = tensor_errors(reference, candidate, folder, pictures)
    readers: dict[str, list[NodeProto]] = {}
    for node in reference.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    blame: dict[str, float] = {}
    for node in reference.graph.node:
        made = max((errors.get(name, 0.0) for name in node.output), default=0.0)
        taken = max((errors.get(name, 0.0) for name in node.input), default=0.0)
        if made > taken:
            blame[node.name] = (made - taken) * _reach(node, made, readers, errors)
    return dict(sorted(blame.items(), key=lambda item: -item[1]))


def tensor_errors(
    reference: ModelProto, candidate: ModelProto, folder: Path, pictures: CalibrationSet
) -> dict[str, float]:
    """Relative error (RMS over all pictures) of each float tensor that both models have; infinite after an overflow."""
    reference = at_opset(reference, opset_of(candidate))
    both = tensor_names(candidate)
    names = [name for name in float_tensors(reference) if name in both]
    run = run_of(_side_by_side(reference, candidate, names).SerializeToString(), folder / "both", config=KEEP_QDQ)
    sums = np.zeros((len(names), 2))
    for start in range(0, min(len(pictures), PICTURES), BATCH):
        outputs = run(pictures.pixels[start : min(start + BATCH, PICTURES)])
        sums += [[float(outputs[f"{name}/error"]), float(outputs[f"{name}/square"])] for name in names]
    return {name: _relative(float(error), float(square)) for name, (error, square) in zip(names, sums, strict=True)}


def _relative(error: float, square: float) -> float:
    if error == 0:
        return 0.0
    ratio = math.sqrt(error / square) if square > 0 else math.inf
    return ratio if math.isfinite(ratio) else math.inf


def _reach(node: NodeProto, made: float, readers: Mapping[str, list[NodeProto]], errors: Mapping[str, float]) -> float:
    """Share (0..1) of a node's error that is still there behind one of its readers; 1 where none can tell."""
    behind = [
        errors[output]
        for name in node.output
        for reader in readers.get(name, ())
        for output in reader.output
        if output in errors
    ]
    if not behind or math.isinf(made):
        return 1.0
    return min(1.0, max(behind) / made)


def _side_by_side(reference: ModelProto, candidate: ModelProto, names: list[str]) -> ModelProto:
    """One model that runs both and gives, for each name, the squared error and the squared length."""
    both, other = copied(reference), copied(candidate)
    rename(other, {name: f"{_OTHER}{name}" for name in tensor_names(other) if name and name != INPUT_NAME})
    for node in other.graph.node:
        node.name = f"{_OTHER}{node.name}"
    both.graph.node.extend(other.graph.node)
    both.graph.initializer.extend(other.graph.initializer)
    del both.graph.output[:], both.graph.value_info[:]
    for name in names:
        difference, error, square = (f"{name}/{word}" for word in ("difference", "error", "square"))
        both.graph.node.extend(
            [
                helper.make_node("Sub", [name, f"{_OTHER}{name}"], [difference], name=difference),
                helper.make_node("ReduceSumSquare", [difference], [error], name=error, keepdims=0),
                helper.make_node("ReduceSumSquare", [name], [square], name=square, keepdims=0),
            ]
        )
        both.graph.output.append(helper.make_tensor_value_info(error, TensorProto.FLOAT, []))
        both.graph.output.append(helper.make_tensor_value_info(square, TensorProto.FLOAT, []))
    return both
