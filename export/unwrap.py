"""What a network ends in: a Softmax or ArgMax of its own is taken off, so that none is applied twice."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import ModelProto, NodeProto

from ..engine.errors import ModelError
from ..engine.spec import Task
from .core import Gives
from .graph import ONNX_DOMAINS, producers, prune, rename

_SHAPE_ONLY = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
_MASK_ONLY = ("Cast", "Squeeze")
_SIGMOIDS = ("Sigmoid", "HardSigmoid")
_PIXEL_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class Bare:
    """What the network gave before the model's output was moved to ``raw``, and the axis of classes per pixel."""

    gives: Gives
    raw: str
    class_axis: int


def unwrap(model: ModelProto, task: Task, *, class_axis: int) -> Bare:
    """Move the output of ``model`` from probabilities to logits (classify), from class ids to logits (segment).

    The model must have one output and no Identity nodes. ``class_axis`` is that of per-pixel logits where no ArgMax
    tells it. Raises ModelError when the output is made of independent sigmoids.
    """
    output = model.graph.output[0].name
    if task is Task.CLASSIFY:
        last = _behind(model, output, _SHAPE_ONLY)
        if last is not None and last.op_type in _SIGMOIDS:
            raise ModelError(
                f"Output {output} comes from {last.op_type}: independent yes/no labels, not one class. "
                f"To rank them all the same, choose what it reads: --output {last.input[0]}."
            )
        if last is not None and last.op_type == "Softmax":
            return Bare(Gives.PROBABILITIES, _without(model, last, output), class_axis)
    if task is Task.SEGMENT:
        last = _behind(model, output, _MASK_ONLY)
        if last is not None and last.op_type == "ArgMax":
            axis = next((entry.i for entry in last.attribute if entry.name == "axis"), 0)
            prune(model, last.input[0])
            return Bare(Gives.LABELS, last.input[0], axis % _PIXEL_DIMENSIONS)
    return Bare(Gives.RAW, output, class_axis)


def _without(model: ModelProto, node: NodeProto, output: str) -> str:
    """Take ``node`` out of the graph, its readers read what it read; returns the output's name."""
    source, result = str(node.input[0]), str(node.output[0])
    if result == output:
        prune(model, source)
        return source
    model.graph.node.remove(node)
    rename(model, {result: source})
    return output


def _behind(model: ModelProto, output: str, passed: tuple[str, ...]) -> NodeProto | None:
    """Node that makes ``output``, looking through ``passed`` kinds of nodes."""
    made_by = producers(model)
    node = made_by.get(output)
    while node is not None and node.domain in ONNX_DOMAINS and node.op_type in passed:
        node = made_by.get(node.input[0])
    return node
