"""int8 graphs: explicit, symmetric Q/DQ around the layers that gain from it, ranges chosen on pictures.

::

    activation fp32 -> Q -> DQ -> Conv | ConvTranspose | Gemm | MatMul -> fp32
    weights int8 per channel -> DQ ---^      ^--- bias fp32, shift taken off

    fp32 -> Q -> DQ -> Add (skip input) <- Conv

That is what TensorRT reads: one scale for an activation, one for each output channel of weights, every zero point 0
and written out, no quantised bias. Pre- and post-processing, normalisation, softmax, GELU and products of activations
stay as they are, and so does every tensor's name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

from ..engine.errors import ModelError
from ..engine.spec import ModelSpec
from .calibration import CalibrationSet
from .graph import array_of
from .int8_cache import cached_calibration
from .int8_layers import Layer, Places, int8_places
from .int8_nodes import QdqWriter
from .int8_ranges import Calibration
from .typed import names_read_inside, prepared

Report = Callable[[str], None]


def quantize(
    model: ModelProto,
    spec: ModelSpec,
    pictures: CalibrationSet,
    *,
    kept: Collection[str] = (),
    report: Report | None = None,
) -> tuple[ModelProto, dict[str, float]]:
    """int8 graph from an fp32 one, which is left as it is, and the nodes that take int8 with their errors, worst first.

    An error is relative (RMS), of what a node gives when it alone takes int8. On MobileNetV2 keeping the one worst
    layer in fp32 raises the first percentile of cosines from 0.988 to 0.994; the error that all of them together leave
    behind each node would choose others, and 16 of those bring less. ``kept`` names nodes that stay fp32. Node names
    are those of ``typed.prepared``, and the metadata still says fp32. Ranges come from ``pictures``, or from the cache
    when model, preprocessing, pictures and tools are the same; ``report`` takes lines for people.

    Raises ModelError when nothing in the model can take int8, and when it gives no finite values.
    """
    model = prepared(model)
    everywhere = int8_places(model)
    if not everywhere.layers:
        reasons = ", ".join(f"{name}: {reason}" for name, reason in everywhere.left.items())
        raise ModelError(
            f"{spec.name} has no layer that gains from int8 ({reasons or 'no layers with constant weights'}). "
            "Choose fp16 or fp32."
        )
    calibration = cached_calibration(model, spec, everywhere, pictures, report or _silent)
    places = int8_places(model, kept)
    _Insertion(model, places, calibration).run()
    errors = {name: calibration.errors[name] for name in places.names}
    return model, dict(sorted(errors.items(), key=lambda item: -item[1]))


class _Insertion:
    """Puts Q/DQ into a model, in the order of its nodes."""

    def __init__(self, model: ModelProto, places: Places, calibration: Calibration) -> None:
        self._graph = model.graph
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._layers = {layer.name: layer for layer in places.layers}
        self._skips = {skip.name: skip for skip in places.skips}
        self._bias_nodes = {layer.bias_node: layer for layer in places.layers if layer.bias_node}
        self._shifts = calibration.shifts
        self._writer = QdqWriter(self._weights, calibration.ranges)

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
        shift = self._shifts[layer.name]
        place = layer.bias_place
        while len(node.input) <= place:
            node.input.append("")
        bias: NDArray[Any] = np.zeros_like(shift)
        if node.input[place]:
            bias = array_of(self._weights[node.input[place]]).astype(np.float32)
        name = f"int8/{layer.name}/bias"
        self._weights[name] = numpy_helper.from_array((bias - shift).astype(np.float32), name)
        node.input[place] = name


def _silent(line: str) -> None:
    del line
