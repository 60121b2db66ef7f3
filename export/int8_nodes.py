"""QuantizeLinear and DequantizeLinear with their scales: symmetric int8, zero points 0 and written out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from .graph import array_of
from .int8_layers import Layer

LEVELS = 127
"""Magnitudes used by weights: -128 has no counterpart, and kernels may leave it out."""

_PREFIX = "int8/"
_SMALLEST_SCALE = 2.0**-24
_LARGEST_HALF = 65504.0
_ALMOST = 1 - 1e-6
"""Keeps scales that fp16 holds, but for the last bits of their computation: with 1/128, pixels of (x - 128) / 128 stay
what they are."""


def scales_for(largest: NDArray[np.floating]) -> NDArray[np.float32]:
    """Scales so that int8 reaches ``largest`` magnitudes, > 0 also where those are 0 (dead channels).

    They are rounded up to what fp16 holds, which costs 0.1 % of resolution at most: at int8+fp16 scales are fp16
    numbers, and codes must belong to just these. From 65504 on they stay fp32.
    """
    wanted = np.where(largest > 0, largest.astype(np.float64) / LEVELS, 1.0)
    wanted = np.maximum(wanted, _SMALLEST_SCALE)
    half = np.minimum(wanted, _LARGEST_HALF).astype(np.float16)
    above = np.where(half < wanted * _ALMOST, np.nextafter(half, np.float16(np.inf)), half)
    return np.where(wanted <= _LARGEST_HALF, above, wanted).astype(np.float32)


def weight_codes(values: NDArray[np.float32], axis: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int8 codes of weights and a scale for each channel along ``axis``: weights are nearly codes times scales."""
    others = tuple(index for index in range(values.ndim) if index != axis)
    scales = scales_for(np.abs(values).max(axis=others))
    shape = [-1 if index == axis else 1 for index in range(values.ndim)]
    codes = np.rint(values / scales.reshape(shape))
    return np.clip(codes, -LEVELS, LEVELS).astype(np.int8), scales


class QdqWriter:
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
            values, scales = weight_codes(array_of(self._weights[layer.weight]).astype(np.float32), layer.axis)
            self._constant(codes, values)
            self._constant(scale, scales)
            self._constant(zero, np.zeros(len(scales), dtype=np.int8))
        read = f"{_PREFIX}{layer.name}/weight"
        node = helper.make_node("DequantizeLinear", [codes, scale, zero], [read], name=read, axis=layer.axis)
        return [node], read

    def _constant(self, name: str, values: NDArray[np.generic]) -> None:
        self.constants.append(numpy_helper.from_array(values, name))
