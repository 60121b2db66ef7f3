"""What int8 needs to know from pictures: how far each activation reaches, and what rounding shifts in each layer.

A range is the cut that costs least: the mean squared error of rounding and cutting a sample of the tensor's values is
computed for cuts from a quarter of the greatest value up to all of it.

Rounded weights shift the mean of each channel, and the shifts of many layers add up. They are measured with fp32
inputs, all layers in one run, and taken off the biases (Nagel et al. 2019, "Data-free quantization", section 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..engine.errors import ModelError
from .calibration import CalibrationSet
from .graph import opset_of
from .int8_layers import Layer, Places
from .int8_nodes import LEVELS, QdqWriter
from .session import KEEP_QDQ, run_of
from .typed import copied

BATCH = 4
SAMPLES = 65_536
"""Values of each activation that its range is chosen by, spread evenly over pictures, channels and places."""

SHIFT_PICTURES = 32
"""Means over so many pictures are settled."""

_CUTS = 128
_FIRST_CUT = 32
_END = np.iinfo(np.int64).max
_REDUCE_AXES_ARE_INPUTS = 18


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured on pictures.

    ``ranges`` holds, for each activation, the greatest magnitude that int8 represents; ``shifts`` what int8 adds to the
    mean of each output channel of a layer; ``errors`` the relative error (RMS) of what a layer or a residual addition
    gives when its own inputs are int8 and nothing else is.
    """

    ranges: Mapping[str, float]
    shifts: Mapping[str, NDArray[np.float32]]
    errors: Mapping[str, float]


def calibrate(model: ModelProto, places: Places, pictures: CalibrationSet) -> Calibration:
    """Ranges, shifts and errors for all ``places`` of a prepared fp32 model.

    Raises ModelError when an activation or a layer's weights are not finite.
    """
    ranges = _ranges(model, places, pictures)
    shifts, errors = _shifts(model, places, ranges, pictures)
    return Calibration(ranges, shifts, errors)


def best_range(values: NDArray[np.float32], greatest: float) -> float:
    """Cut with the least mean squared error over sampled magnitudes; ``greatest`` is that of the whole tensor."""
    if greatest == 0:
        return 0.0
    cuts = greatest * np.arange(_FIRST_CUT, _CUTS + 1) / _CUTS
    errors = []
    for cut in cuts:
        scale = np.float32(cut / LEVELS)
        rounded = np.minimum(np.rint(values / scale), LEVELS) * scale
        errors.append(float(np.square(rounded - values).mean()))
    return float(cuts[int(np.argmin(errors))])


def _tensor(name: str, what: str) -> str:
    """Name of a tensor that measuring adds."""
    return f"measured/{name}/{what}"


def _ranges(model: ModelProto, places: Places, pictures: CalibrationSet) -> dict[str, float]:
    watched = _with_samples(model, places.sources, max(1, SAMPLES * BATCH // len(pictures)))
    run = run_of(watched.SerializeToString(), Path(model.graph.name))
    samples: dict[str, list[NDArray[np.float32]]] = {source: [] for source in places.sources}
    greatest = dict.fromkeys(places.sources, 0.0)
    for batch in pictures.batches(BATCH):
        outputs = run(batch)
        for source in places.sources:
            samples[source].append(outputs[_tensor(source, "sample")])
            greatest[source] = max(greatest[source], float(outputs[_tensor(source, "greatest")]))
            if not np.isfinite(outputs[_tensor(source, "greatest")]):
                raise ModelError(
                    f"{model.graph.name} makes NaN or infinity in '{source}' on calibration pictures, before any "
                    "conversion. Look for bad weights, or a mean and std that do not belong to the model."
                )
    return {source: best_range(np.concatenate(samples[source]), greatest[source]) for source in places.sources}


def _with_samples(model: ModelProto, sources: tuple[str, ...], quota: int) -> ModelProto:
    """Model that gives, of each source, about ``quota`` magnitudes of a batch and the greatest of all."""
    watched = copied(model)
    graph = watched.graph
    constants = {"flat": [-1], "apart": [2 * quota], "two": [2], "one": [1], "start": [0], "end": [_END], "axis": [0]}
    graph.initializer.extend(
        numpy_helper.from_array(np.array(values, dtype=np.int64), f"measured/{name}")
        for name, values in constants.items()
    )
    del graph.output[:]
    for source in sources:
        graph.node.extend(_sampling(source))
        graph.output.append(helper.make_tensor_value_info(_tensor(source, "sample"), TensorProto.FLOAT, None))
        graph.output.append(helper.make_tensor_value_info(_tensor(source, "greatest"), TensorProto.FLOAT, []))
    return watched


def _sampling(source: str) -> list[NodeProto]:
    """Every k-th magnitude, k odd: an even one would meet the same columns of every picture."""
    steps = [
        ("Reshape", [source, "measured/flat"], "flat"),
        ("Abs", [_tensor(source, "flat")], "magnitude"),
        ("Size", [source], "size"),
        ("Div", [_tensor(source, "size"), "measured/apart"], "halves"),
        ("Mul", [_tensor(source, "halves"), "measured/two"], "even"),
        ("Add", [_tensor(source, "even"), "measured/one"], "step"),
        (
            "Slice",
            [
                _tensor(source, "magnitude"),
                "measured/start",
                "measured/end",
                "measured/axis",
                _tensor(source, "step"),
            ],
            "sample",
        ),
    ]
    nodes = [helper.make_node(kind, inputs, [_tensor(source, output)]) for kind, inputs, output in steps]
    nodes.append(
        helper.make_node("ReduceMax", [_tensor(source, "magnitude")], [_tensor(source, "greatest")], keepdims=0)
    )
    return nodes


def _shifts(
    model: ModelProto, places: Places, ranges: Mapping[str, float], pictures: CalibrationSet
) -> tuple[dict[str, NDArray[np.float32]], dict[str, float]]:
    twins = _Twins(model, places, ranges)
    run = run_of(twins.model.SerializeToString(), Path(model.graph.name), config=KEEP_QDQ)
    shifts = {layer.name: np.zeros(1) for layer in places.layers}
    powers = {name: np.zeros(2) for name in places.names}
    seen = 0
    for batch in pictures.batches(BATCH):
        if seen >= SHIFT_PICTURES:
            break
        outputs = run(batch)
        seen += len(batch)
        for name, power in powers.items():
            power += outputs[_tensor(name, "error")], outputs[_tensor(name, "square")]
        for name in shifts:
            shifts[name] = shifts[name] + outputs[_tensor(name, "shift")].astype(np.float64) * len(batch)
    for name, power in powers.items():
        if not np.isfinite(power).all():
            raise ModelError(f"'{name}' of {model.graph.name} gives NaN or infinity. Look for bad weights.")
    errors = {name: float(np.sqrt(error / square)) if square else 0.0 for name, (error, square) in powers.items()}
    return {name: (total / seen).astype(np.float32) for name, total in shifts.items()}, errors


class _Twins:
    """The model with an int8 twin beside each layer, both reading fp32 inputs; outputs are what differs."""

    def __init__(self, model: ModelProto, places: Places, ranges: Mapping[str, float]) -> None:
        self.model = copied(model)
        self._graph = self.model.graph
        self._opset = opset_of(model)
        self._nodes = {node.name: node for node in model.graph.node}
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._writer = QdqWriter(self._weights, ranges)
        del self._graph.output[:]
        for layer in places.layers:
            self._add_layer(layer)
        for skip in places.skips:
            before, read = self._writer.activation(skip.source, f"{skip.name}/twin")
            self._graph.node.extend(before)
            self._compare(skip.name, read, skip.source, self._nodes[skip.name].output[0])
        self._graph.initializer.extend(self._writer.constants)

    def _add_layer(self, layer: Layer) -> None:
        twin = NodeProto()
        twin.CopyFrom(self._nodes[layer.name])
        twin.name = f"{layer.name}/twin"
        before, twin.input[0] = self._writer.activation(layer.source, twin.name)
        weight, twin.input[1] = self._writer.weight(layer)
        twin.output[0] = _tensor(layer.name, "twin")
        self._graph.node.extend([*before, *weight, twin])
        self._compare(layer.name, twin.output[0], layer.output, layer.output)
        self._mean(layer)

    def _compare(self, name: str, int8: str, fp32: str, whole: str) -> None:
        """Squared error of ``int8`` against ``fp32``, and the squared length of ``whole``."""
        self._node("Sub", [int8, fp32], _tensor(name, "difference"))
        self._node("ReduceSumSquare", [_tensor(name, "difference")], _tensor(name, "error"), keepdims=0)
        self._node("ReduceSumSquare", [whole], _tensor(name, "square"), keepdims=0)
        self._output(_tensor(name, "error"))
        self._output(_tensor(name, "square"))

    def _mean(self, layer: Layer) -> None:
        """Mean difference of each output channel."""
        dims = list(self._weights[layer.weight].dims)
        axes = [0, *range(2, len(dims))] if layer.kind in ("Conv", "ConvTranspose") else [0]
        rows = _tensor(layer.name, "difference")
        if layer.kind == "MatMul":
            shape = self._constant(_tensor(layer.name, "rows_shape"), [-1, dims[-1]])
            rows = self._node("Reshape", [rows, shape], _tensor(layer.name, "rows"))
        if self._opset < _REDUCE_AXES_ARE_INPUTS:
            self._node("ReduceMean", [rows], _tensor(layer.name, "shift"), axes=axes, keepdims=0)
        else:
            self._node(
                "ReduceMean",
                [rows, self._constant(_tensor(layer.name, "axes"), axes)],
                _tensor(layer.name, "shift"),
                keepdims=0,
            )
        self._output(_tensor(layer.name, "shift"))

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._graph.node.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def _constant(self, name: str, values: list[int]) -> str:
        self._graph.initializer.append(numpy_helper.from_array(np.array(values, dtype=np.int64), name))
        return name

    def _output(self, name: str) -> None:
        self._graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
