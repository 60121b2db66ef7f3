"""QuantizeLinear and DequantizeLinear put into a graph: symmetric int8, zero points 0 and written out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ...engine.errors import ModelError
from ..graph import array_of
from ..typed import copied, names_read_inside
from .layers import Layer, Places

LEVELS = 127
"""Magnitudes used by weights: -128 has no counterpart, and kernels may leave it out."""

_PREFIX = "int8/"
_SMALLEST_SCALE = 2.0**-24
_LARGEST_HALF = 65504.0
_ALMOST = 1 - 1e-6
"""Keeps scales that fp16 holds, but for the last bits of their computation: with 1/128, pixels of (x - 128) / 128 stay
what they are."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured on pictures.

    ``ranges`` holds, for each activation, the greatest magnitude that int8 represents; ``shifts`` what int8 adds to the
    mean of each output channel of a layer, to be taken off its bias.
    """

    ranges: Mapping[str, float]
    shifts: Mapping[str, NDArray[np.float32]]


def with_qdq(model: ModelProto, places: Places, calibration: Calibration) -> ModelProto:
    """Copy of a prepared fp32 model whose ``places`` take int8; every tensor keeps its name.

    Raises ModelError when weights are not finite.
    """
    copy = copied(model)
    _Insertion(copy, places, calibration).run()
    return copy


def bias_name(layer: Layer) -> str:
    """Name of a layer's corrected bias."""
    return f"{_PREFIX}{layer.name}/bias"


def scales_for(largest: NDArray[np.floating]) -> NDArray[np.float32]:
    """Scales so that int8 reaches ``largest`` magnitudes, > 0 also where those are 0 (dead channels).

    They are rounded up to what fp16 holds, which costs 0.1 % of resolution at most: at int8+fp16 scales are fp16
    numbers, and codes must belong to just these. From 65504 on they stay fp32.
    """
    wanted = np.where(largest > 0, largest.astype(np.float64) / LEVELS, 1.0)
    wanted = np.maximum(wanted, _SMALLEST_SCALE)
    half = np.minimum(wanted, _LARGEST_HALF).astype(np.float16)
    with np.errstate(over="ignore"):  # of the largest half, whose follower is not taken
        above = np.where(half < wanted * _ALMOST, np.nextafter(half, np.float16(np.inf)), half)
    return np.where(wanted <= _LARGEST_HALF, above, wanted).astype(np.float32)


def weight_codes(values: NDArray[np.float32], axis: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int8 codes of weights and a scale for each channel along ``axis``: weights are nearly codes times scales."""
    others = tuple(index for index in range(values.ndim) if index != axis)
    scales = scales_for(np.abs(values).max(axis=others))
    shape = [-1 if index == axis else 1 for index in range(values.ndim)]
    codes = np.rint(values / scales.reshape(shape))
    return np.clip(codes, -LEVELS, LEVELS).astype(np.int8), scales


class _Writer:
    """Nodes and constants for int8 activations and weights; each tensor is quantised once, however many read it.

    ``constants`` are the initializers to add. Every reader gets a DequantizeLinear of its own, so that TensorRT can
    fuse each with its reader.
    """

    def __init__(self, weights: Mapping[str, TensorProto], ranges: Mapping[str, float]) -> None:
        self.constants: list[TensorProto] = []
        self._weights = weights
        self._ranges = ranges
        self._written: set[str] = set()

    def activation(self, source: str, reader: str) -> tuple[list[NodeProto], str]:
        """Nodes to put before node ``reader``, and the name under which it reads ``source``."""
        scale, zero, codes = (f"{_PREFIX}{source}/{word}" for word in ("scale", "zero", "codes"))
        nodes = []
        if codes not in self._written:
            self._written.add(codes)
            self._constant(scale, scales_for(np.array(self._ranges[source])))
            self._constant(zero, np.array(0, dtype=np.int8))
            nodes.append(helper.make_node("QuantizeLinear", [source, scale, zero], [codes], name=codes))
        read = f"{_PREFIX}{reader}/input"
        nodes.append(helper.make_node("DequantizeLinear", [codes, scale, zero], [read], name=read))
        return nodes, read

    def weight(self, layer: Layer) -> tuple[list[NodeProto], str]:
        """Nodes to put before a layer, and the name under which it reads its weights."""
        stem = f"{_PREFIX}{layer.weight}/axis{layer.axis}"
        codes, scale, zero = f"{stem}/codes", f"{stem}/scale", f"{stem}/zero"
        if codes not in self._written:
            self._written.add(codes)
            weights = array_of(self._weights[layer.weight]).astype(np.float32)
            if not np.isfinite(weights).all():
                raise ModelError(f"The weights of layer '{layer.name}' hold NaN or infinity. Export a sound model.")
            values, scales = weight_codes(weights, layer.axis)
            self._constant(codes, values)
            self._constant(scale, scales)
            self._constant(zero, np.zeros(len(scales), dtype=np.int8))
        read = f"{_PREFIX}{layer.name}/weight"
        node = helper.make_node("DequantizeLinear", [codes, scale, zero], [read], name=read, axis=layer.axis)
        return [node], read

    def _constant(self, name: str, values: NDArray[np.generic]) -> None:
        self.constants.append(numpy_helper.from_array(values, name))


class _Insertion:
    """Puts Q/DQ into a model, in the order of its nodes."""

    def __init__(self, model: ModelProto, places: Places, calibration: Calibration) -> None:
        self._graph = model.graph
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._layers = {layer.name: layer for layer in places.layers}
        self._skips = {skip.name: skip for skip in places.skips}
        self._bias_nodes = {layer.bias_node: layer for layer in places.layers if layer.bias_node}
        self._shifts = calibration.shifts
        self._writer = _Writer(self._weights, calibration.ranges)

    def run(self) -> None:
        nodes: list[NodeProto] = []
        for node in self._graph.node:
            if node.name in self._layers:
                nodes.extend(self._quantize(node, self._layers[node.name]))
            if node.name in self._skips:
                skip = self._skips[node.name]
                before, node.input[skip.place] = self._writer.activation(skip.source, node.name)
                nodes.extend(before)
            if node.name in self._bias_nodes:
                self._correct(node, self._bias_nodes[node.name])
            nodes.append(node)
        used = {name for node in nodes for name in (*node.input, *names_read_inside(node))}
        used |= {value.name for value in self._graph.output}
        tensors = [tensor for tensor in (*self._weights.values(), *self._writer.constants) if tensor.name in used]
        del self._graph.node[:], self._graph.initializer[:], self._graph.value_info[:]
        self._graph.node.extend(nodes)
        self._graph.initializer.extend(tensors)

    def _quantize(self, node: NodeProto, layer: Layer) -> list[NodeProto]:
        before, node.input[0] = self._writer.activation(layer.source, layer.name)
        weight, node.input[1] = self._writer.weight(layer)
        return [*before, *weight]

    def _correct(self, node: NodeProto, layer: Layer) -> None:
        """Give a layer a bias of its own, less what int8 adds to the mean of each channel."""
        shift = self._shifts.get(layer.name)
        if shift is None:
            return
        place = layer.bias_place
        while len(node.input) <= place:
            node.input.append("")
        bias = np.zeros_like(shift)
        if node.input[place]:
            bias = array_of(self._weights[node.input[place]]).astype(np.float32)
        name = bias_name(layer)
        self._weights[name] = numpy_helper.from_array((bias - shift).astype(np.float32), name)
        node.input[place] = name
