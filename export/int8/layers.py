"""Which layers of a graph take int8, where their parts are, and which are left alone for what reason.

int8 pays in convolutions and matrix products with constant weights; all else (normalisation, softmax, GELU, products of
two activations inside attention, pooling) is left as it is. Of those layers, left alone are: squeeze-and-excite, since
a few values there scale whole feature maps; convolutions of few channels, for which there are no int8 kernels; and
transposed convolutions in groups, whose channels do not lie along one axis of their weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, helper

from ..graph import ONNX_DOMAINS, producers
from ..typed import element_types

LAYER_KINDS = ("Conv", "ConvTranspose", "Gemm", "MatMul")

FEWEST_CHANNELS = 16
"""Below, int8 kernels have less to do than their conversions cost; NVIDIA's Model Optimizer draws the same line."""

_CHANNELS_TOGETHER = 8
"""First and depthwise convolutions have few inputs by nature: they need outputs in multiples of this."""

_FIRST_INPUTS = 4
_POOLING = ("GlobalAveragePool", "ReduceMean")
_GATE_LAYERS = 2
_REQUESTED = "asked for"


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with constant weights.

    ``source`` is the activation it reads, ``axis`` that of output channels in the weights. The bias, where there is one
    constant value for each channel, is input ``bias_place`` of node ``bias_node`` (an Add behind a MatMul); otherwise
    ``bias_node`` is the layer itself when it can take a bias, or empty.
    """

    name: str
    kind: str
    source: str
    weight: str
    output: str
    axis: int
    bias_node: str
    bias_place: int


@dataclass(frozen=True, slots=True)
class Skip:
    """A residual Add behind a convolution; input ``place`` is ``source``, which does not come from that convolution."""

    name: str
    source: str
    place: int


@dataclass(frozen=True, slots=True)
class Places:
    """Layers and residual additions that take int8, in graph order, and the layers left alone with reasons."""

    layers: tuple[Layer, ...]
    skips: tuple[Skip, ...]
    left: Mapping[str, str]

    @property
    def sources(self) -> tuple[str, ...]:
        """Activations to quantise, each once."""
        return tuple(dict.fromkeys([*(layer.source for layer in self.layers), *(skip.source for skip in self.skips)]))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes that take int8."""
        return (*(layer.name for layer in self.layers), *(skip.name for skip in self.skips))


def int8_places(model: ModelProto, kept: Collection[str] = ()) -> Places:
    """Places in a prepared fp32 model; nodes named in ``kept`` are left alone, too."""
    graph = _Graph(model)
    layers: list[Layer] = []
    left: dict[str, str] = {}
    gates = _squeeze_and_excite(graph)
    for node in model.graph.node:
        if not graph.is_layer(node):
            continue
        reason = _REQUESTED if node.name in kept else _reason_to_leave(node, graph, gates)
        if reason:
            left[node.name] = reason
        else:
            layers.append(_layer_of(node, graph))
    skips = _skips(graph, {layer.output for layer in layers if layer.kind == "Conv"})
    return Places(tuple(layers), tuple(skip for skip in skips if skip.name not in kept), left)


class _Graph:
    """Lookups in one model."""

    def __init__(self, model: ModelProto) -> None:
        self.nodes = model.graph.node
        self.weights: dict[str, TensorProto] = {tensor.name: tensor for tensor in model.graph.initializer}
        self.made_by = producers(model)
        self.types = element_types(model)
        self.outputs = {value.name for value in model.graph.output}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def is_layer(self, node: NodeProto) -> bool:
        if node.op_type not in LAYER_KINDS or node.domain not in ONNX_DOMAINS:
            return False
        weight = self.weights.get(node.input[1])
        float_weights = weight is not None and weight.data_type == TensorProto.FLOAT
        return (
            float_weights and node.input[0] not in self.weights and self.types.get(node.input[0]) == TensorProto.FLOAT
        )

    def dynamic(self, node: NodeProto) -> list[str]:
        """Inputs that are no constants, each once."""
        return list(dict.fromkeys(name for name in node.input if name and name not in self.weights))

    def only_reader(self, name: str) -> NodeProto | None:
        """The one node that reads a tensor, unless that is an output of the graph, too."""
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.outputs else None


def _reason_to_leave(node: NodeProto, graph: _Graph, gates: Collection[str]) -> str:
    """Why a layer does not take int8; empty when it does."""
    if node.name in gates:
        return "squeeze-and-excite"
    dims = list(graph.weights[node.input[1]].dims)
    if node.op_type in ("Gemm", "MatMul"):
        if len(dims) != 2:
            return f"weights of {len(dims)} dimensions"
        return "" if min(dims) >= FEWEST_CHANNELS else f"a matrix of only {dims[0]} x {dims[1]}"
    group = int(attribute(node, "group", 1))
    if node.op_type == "ConvTranspose":
        return "transposed in groups" if group > 1 else _few(dims[1], dims[0])
    depthwise = group > 1 and dims[1] == 1
    if depthwise or (group == 1 and dims[1] <= _FIRST_INPUTS):
        whole = dims[0] % _CHANNELS_TOGETHER == 0 and (max(dims[2:], default=1) > 1 or not depthwise)
        return "" if whole else f"a convolution from {dims[1] * group} to {dims[0]} channels"
    return _few(dims[0], dims[1])


def _few(outputs: int, inputs: int) -> str:
    enough = min(outputs, inputs) >= FEWEST_CHANNELS
    return "" if enough else f"a convolution from {inputs} to {outputs} channels"


def attribute(node: NodeProto, name: str, default: Any) -> Any:
    """Value of a node's attribute."""
    return next((helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name), default)


def _layer_of(node: NodeProto, graph: _Graph) -> Layer:
    rank = len(graph.weights[node.input[1]].dims)
    axis = {"Conv": 0, "ConvTranspose": 1, "MatMul": rank - 1}.get(node.op_type)
    if axis is None:
        axis = 0 if attribute(node, "transB", 0) else 1
    place = _bias_of(node, graph)
    return Layer(node.name, node.op_type, node.input[0], node.input[1], node.output[0], axis, *place)


def _bias_of(node: NodeProto, graph: _Graph) -> tuple[str, int]:
    """Node and input that add one value to each channel; an empty name where there is no such place."""
    channels = graph.weights[node.input[1]].dims
    if node.op_type == "MatMul":
        add = graph.only_reader(node.output[0])
        constant = [] if add is None or add.op_type != "Add" else [name for name in add.input if name in graph.weights]
        if add is None or len(constant) != 1 or list(graph.weights[constant[0]].dims) != [channels[-1]]:
            return "", 0
        return add.name, list(add.input).index(constant[0])
    has_bias = len(node.input) > 2 and bool(node.input[2])
    bias = graph.weights.get(node.input[2]) if has_bias else None
    plain = not has_bias or (bias is not None and len(bias.dims) == 1)
    if node.op_type == "Gemm" and (attribute(node, "beta", 1.0) != 1.0 or attribute(node, "alpha", 1.0) != 1.0):
        plain = False
    return (node.name, 2) if plain else ("", 0)


def _squeeze_and_excite(graph: _Graph) -> set[str]:
    """Layers between a global pooling and the Mul that scales a feature map by what they make of it."""
    found: set[str] = set()
    for node in graph.nodes:
        if node.op_type == "Mul" and len(graph.dynamic(node)) == 2:
            for name in graph.dynamic(node):
                found.update(_layers_up_to_pooling(name, graph))
    return found


def _layers_up_to_pooling(name: str, graph: _Graph) -> list[str]:
    """Layers on the one path from a global pooling to tensor ``name``; empty when there is no such path."""
    layers: list[str] = []
    node = graph.made_by.get(name)
    while node is not None and len(layers) <= _GATE_LAYERS:
        if node.op_type in _POOLING:
            return layers
        if graph.is_layer(node):
            layers.append(node.name)
        sources = graph.dynamic(node)
        node = graph.made_by.get(sources[0]) if len(sources) == 1 else None
    return []


def _skips(graph: _Graph, convolved: Collection[str]) -> Iterator[Skip]:
    """Residual additions where one input comes straight from an int8 convolution that nothing else reads.

    TensorRT fuses convolution, addition and what follows when the other input is int8. Where both come from a
    convolution, the later one is fused.
    """
    order = {name: index for index, node in enumerate(graph.nodes) for name in node.output}
    for node in graph.nodes:
        if node.op_type != "Add" or len(graph.dynamic(node)) != 2:
            continue
        fused = [name for name in node.input if name in convolved and graph.only_reader(name) is not None]
        if fused:
            main = max(fused, key=lambda name: order[name])
            place = 1 - list(node.input).index(main)
            yield Skip(node.name, node.input[place], place)
