"""The vdali graph: uint8 pictures in, the task's outputs out, pre- and post-processing folded in.

::

    images uint8 [n, h, w, 3] -> Cast -> Transpose -> (channel swap) -> Sub -> (Mul) -> core
      classify: (Slice) -> Softmax -> TopK -> top_scores [n, k], top_labels [n, k]
      embed:    (ReduceL2, Div) -> embedding [n, d]
      segment:  ArgMax -> Cast -> mask uint8 [n, h, w]

Cast comes first since TensorRT lets nothing else read a uint8 input. Scale and shift come after the transpose: there
their constants span whole planes, which ONNX Runtime does 20 times as fast as constants along a last axis of 3.
(x - 255 mean) * (1 / (255 std)) is within 5e-7 of torchvision's (x / 255 - mean) / std, as each is of the exact value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ..engine.errors import ModelError
from ..engine.preprocess import ColorOrder
from ..engine.spec import INPUT_NAME, METADATA_KEY, OUTPUT_NAMES, ModelSpec, Task
from .core import Core, Layout
from .graph import BATCH, make_room, opset_of, rename

TOP_K = 5
MAX_CLASSES = 255
"""Masks are uint8, and 255 is the customary "no class"."""

_CORE_INPUT = "vdali/input"
_CORE_OUTPUT = "vdali/output"
_REDUCE_AXES_ARE_INPUTS = 18
"""Opset from which Reduce nodes take their axes as an input."""


def fold(core: Core) -> tuple[ModelProto, ModelSpec]:
    """Graph and spec of a vdali file; ``core.model`` is changed and returned.

    Raises ModelError when the raw output does not fit the task.
    """
    raw = _raw_name(core)
    before, after = _Part(), _Part()
    _add_prelude(before, core)
    core_output = _add_shaping(after, core, raw)
    outputs = _HEADS[core.task](after, core, raw)
    model = core.model
    make_room(model, [INPUT_NAME, raw, *OUTPUT_NAMES[core.task]], keep=[core.input_name, core.raw_name])
    rename(model, {core.input_name: _CORE_INPUT, core.raw_name: core_output})
    graph = model.graph
    nodes = [*before.nodes, *graph.node, *after.nodes]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*before.constants, *after.constants])
    graph.input.append(helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, [BATCH, *core.preprocess.size, 3]))
    graph.output.extend(outputs)
    graph.name = core.name
    spec = ModelSpec(
        name=core.name,
        task=core.task,
        preprocess=core.preprocess,
        classes=core.classes,
        raw_output=raw,
        normalize=core.normalize,
        weights=core.weights,
        source=core.source,
    )
    helper.set_model_props(model, {METADATA_KEY: spec.dumps()})
    return model, spec


def class_count(core: Core) -> int | None:
    """Number of classes; None for embeddings, and for masks that come without logits."""
    if core.task is Task.EMBED or core.raw_is_mask:
        return None
    if core.task is Task.SEGMENT:
        return core.raw_shape[core.class_axis - 1]
    return math.prod(core.raw_shape) - core.label_offset


class _Part:
    """Nodes and constants to put before or behind a core."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def add(self, kind: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=f"vdali/{kind}_{outputs[0]}", **attributes))
        return outputs[0]

    def constant(self, name: str, values: Any, kind: type[np.generic]) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype=kind), f"vdali/{name}"))
        return str(self.constants[-1].name)


def _raw_name(core: Core) -> str:
    if core.task is Task.EMBED:
        return "embedding_raw" if core.normalize else "embedding"
    return "mask_raw" if core.raw_is_mask else "logits"


def _add_prelude(part: _Part, core: Core) -> None:
    """Nodes from ``images`` to the core's input."""
    spec = core.preprocess
    value = part.add("Cast", [INPUT_NAME], "vdali/pixels", to=TensorProto.FLOAT)
    if core.layout is Layout.NCHW:
        value = part.add("Transpose", [value], "vdali/planes", perm=[0, 3, 1, 2])
    if spec.color_order is ColorOrder.BGR:
        order = part.constant("channel_order", [2, 1, 0], np.int64)
        value = part.add("Gather", [value, order], "vdali/ordered", axis=1 if core.layout is Layout.NCHW else 3)
    mean = np.array(spec.mean, dtype=np.float64) * 255
    scale = 1 / (np.array(spec.std, dtype=np.float64) * 255)
    if mean.any():
        value = part.add("Sub", [value, _per_channel(part, "mean", mean, core)], "vdali/shifted")
    if not _scaled_into_conv(core, scale):
        part.add("Mul", [value, _per_channel(part, "scale", scale, core)], "vdali/scaled")
    part.nodes[-1].output[0] = _CORE_INPUT


def _scaled_into_conv(core: Core, scale: NDArray[np.float64]) -> bool:
    """Multiply the weights of the first convolution by ``scale``, where it alone reads the input.

    Zero padding stays zero, so this is exact but for rounding; the shift could not be folded this way. It takes one
    pass over the pictures away: 5 % of mobilenetv3_small_100 on one CPU thread.
    """
    readers = [node for node in core.model.graph.node if core.input_name in node.input and node.op_type != "Shape"]
    weights = {tensor.name: tensor for tensor in core.model.graph.initializer}
    if core.layout is not Layout.NCHW or len(readers) != 1 or readers[0].op_type != "Conv":
        return False
    tensor = weights.get(readers[0].input[1])
    users = [node for node in core.model.graph.node if tensor is not None and tensor.name in node.input]
    if tensor is None or len(users) != 1 or tensor.data_type != TensorProto.FLOAT or tensor.dims[1] != len(scale):
        return False
    scaled = numpy_helper.to_array(tensor) * scale.reshape(1, 3, 1, 1)
    tensor.CopyFrom(numpy_helper.from_array(scaled.astype(np.float32), tensor.name))
    return True


def _per_channel(part: _Part, name: str, values: NDArray[np.float64], core: Core) -> str:
    """Constant that broadcasts over pictures; a scalar where channels agree, whole lines in NHWC (see above)."""
    if np.ptp(values) == 0:
        return part.constant(name, values[0], np.float32)
    if core.layout is Layout.NCHW:
        return part.constant(name, values.reshape(3, 1, 1), np.float32)
    return part.constant(name, np.tile(values, (core.preprocess.size[1], 1)), np.float32)


def _add_shaping(part: _Part, core: Core, raw: str) -> str:
    """Nodes from the core's output to the raw tensor; returns the name for the core's output."""
    if core.task is Task.SEGMENT:
        return raw
    width = math.prod(core.raw_shape)
    if width != max(core.raw_shape, default=0):
        raise ModelError(
            f"The output has shape [n, {', '.join(map(str, core.raw_shape))}]; task {core.task} needs one vector for "
            "each picture. Choose a pooled output with --output, or another --task."
        )
    flat, sliced = len(core.raw_shape) == 1, core.label_offset > 0
    if flat and not sliced:
        return raw
    value = _CORE_OUTPUT
    if not flat:
        value = part.add("Flatten", [value], "vdali/flat" if sliced else raw, axis=1)
    if sliced:
        start = part.constant("label_offset", [core.label_offset], np.int64)
        end = part.constant("label_end", [width], np.int64)
        part.add("Slice", [value, start, end, part.constant("label_axis", [1], np.int64)], raw)
    return _CORE_OUTPUT


def _classify(part: _Part, core: Core, raw: str) -> list[ValueInfoProto]:
    count = math.prod(core.raw_shape) - core.label_offset
    if count < 2:
        raise ModelError(f"Task classify needs 2 classes or more, the output has {count}. Choose another --output.")
    top = min(TOP_K, count)
    scores = part.add("Softmax", [raw], "vdali/scores", axis=-1)
    part.add("TopK", [scores, part.constant("top_k", [top], np.int64)], "top_scores", "top_labels", axis=-1)
    return [
        helper.make_tensor_value_info("top_scores", TensorProto.FLOAT, [BATCH, top]),
        helper.make_tensor_value_info("top_labels", TensorProto.INT64, [BATCH, top]),
    ]


def _embed(part: _Part, core: Core, raw: str) -> list[ValueInfoProto]:
    if core.normalize:
        norm = _add_norm(part, raw, opset_of(core.model))
        part.add("Div", [raw, norm], "embedding")
    return [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [BATCH, math.prod(core.raw_shape)])]


def _add_norm(part: _Part, raw: str, opset: int) -> str:
    """L2 norm with no epsilon: a zero vector becomes NaN, which a run reports as a failure."""
    if opset < _REDUCE_AXES_ARE_INPUTS:
        return part.add("ReduceL2", [raw], "vdali/norm", axes=[1], keepdims=1)
    return part.add("ReduceL2", [raw, part.constant("norm_axis", [1], np.int64)], "vdali/norm", keepdims=1)


def _segment(part: _Part, core: Core, raw: str) -> list[ValueInfoProto]:
    shape = list(core.raw_shape)
    if core.raw_is_mask:
        value, shape = _squeezed(part, raw, shape)
    else:
        value, shape = _labels(part, core, raw, shape)
    part.add("Cast", [value], "mask", to=TensorProto.UINT8)
    return [helper.make_tensor_value_info("mask", TensorProto.UINT8, [BATCH, *shape])]


def _labels(part: _Part, core: Core, raw: str, shape: list[int]) -> tuple[str, list[int]]:
    if len(shape) != 3:
        raise ModelError(
            f"The output has shape [n, {', '.join(map(str, shape))}]; task segment needs per-pixel logits [n, classes, "
            "height, width] or integer class ids [n, height, width]. Choose another --output or --task."
        )
    count = shape.pop(core.class_axis - 1)
    if not 2 <= count <= MAX_CLASSES:
        raise ModelError(f"The model segments into {count} classes; masks are uint8 and hold 2 to {MAX_CLASSES}.")
    return part.add("ArgMax", [raw], "vdali/labels", axis=core.class_axis, keepdims=0), shape


def _squeezed(part: _Part, raw: str, shape: list[int]) -> tuple[str, list[int]]:
    """Mask of shape [n, h, w] from [n, h, w], [n, 1, h, w] or [n, h, w, 1]."""
    if len(shape) == 2:
        return raw, shape
    if len(shape) != 3 or 1 not in (shape[0], shape[2]):
        raise ModelError(
            f"The integer output has shape [n, {', '.join(map(str, shape))}]; task segment needs class ids "
            "[n, height, width]. Choose another --output."
        )
    axis = 1 if shape[0] == 1 else 3
    del shape[axis - 1]
    return part.add("Squeeze", [raw, part.constant("mask_axis", [axis], np.int64)], "vdali/mask"), shape


_HEADS: dict[Task, Callable[[_Part, Core, str], list[ValueInfoProto]]] = {
    Task.CLASSIFY: _classify,
    Task.EMBED: _embed,
    Task.SEGMENT: _segment,
}
