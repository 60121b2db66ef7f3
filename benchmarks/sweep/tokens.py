"""What a resolution costs a vision transformer: tokens, and the attention's share of the arithmetic.

Counted on the ONNX graph at batch size 1, so it holds for windowed and global attention alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import NodeProto, ValueInfoProto
from onnx.shape_inference import infer_shapes

Shape = tuple[int, ...]
_UNKNOWN = 0


@dataclass(frozen=True, slots=True)
class Attention:
    """Tokens of the longest attention row (class tokens included), and multiply-adds per image: attention's (queries
    with keys, weights with values) and all of them (convolutions and matrix products).
    """

    tokens: int
    attention_macs: int
    macs: int

    @property
    def share(self) -> float:
        return self.attention_macs / self.macs

    def to_json(self, base: Attention | None) -> dict[str, Any]:
        """JSON form; ``base`` is the same model at the resolution that costs are relative to."""
        values: dict[str, Any] = {"tokens": self.tokens, "attention_share": self.share, "gmacs": self.macs / 1e9}
        if base is not None:
            values["attention_cost_relative"] = self.attention_macs / base.attention_macs
            values["cost_relative"] = self.macs / base.macs
        return values


def attention_of(model: Path) -> Attention | None:
    """Attention of a vdali file; None where it has none: no softmax between two products of activations."""
    graph = _with_shapes(onnx.load(model))
    shapes = _shapes(graph)
    constants = {value.name for value in graph.graph.initializer}
    products = [node for node in graph.graph.node if node.op_type == "MatMul" and not constants & set(node.input)]
    softmaxes = [shapes[node.output[0]] for node in graph.graph.node if node.op_type == "Softmax"]
    rows = [shape[-1] for shape in softmaxes if len(shape) >= 3 and shape[-1] > 1]
    attention = sum(_macs(node, shapes) for node in products)
    if not rows or not attention:
        return None
    total = sum(_macs(node, shapes) for node in graph.graph.node)
    return Attention(max(rows), attention, total)


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Model for one image, with the shape of every tensor that can be known."""
    for value in (*model.graph.input, *model.graph.output):
        dimension = value.type.tensor_type.shape.dim[0] if value.type.tensor_type.shape.dim else None
        if dimension is not None and not dimension.HasField("dim_value"):
            dimension.dim_value = 1
    del model.graph.value_info[:]  # what they say of the batch is no longer so
    return infer_shapes(model, data_prop=True)


def _shapes(model: onnx.ModelProto) -> Mapping[str, Shape]:
    graph = model.graph
    known = {value.name: _shape(value) for value in (*graph.value_info, *graph.input, *graph.output)}
    known |= {value.name: tuple(value.dims) for value in graph.initializer}
    return _Shapes(known)


class _Shapes(dict[str, Shape]):
    """Shapes by name; what is not known has none."""

    def __missing__(self, name: str) -> Shape:
        return ()


def _shape(value: ValueInfoProto) -> Shape:
    return tuple(d.dim_value if d.HasField("dim_value") else _UNKNOWN for d in value.type.tensor_type.shape.dim)


def _macs(node: NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Multiply-adds of a convolution or a matrix product, 0 for other nodes and unknown shapes."""
    if node.op_type == "Conv":
        weight = shapes[node.input[1]]
        return math.prod(shapes[node.output[0]]) * math.prod(weight[1:]) if weight else 0
    if node.op_type == "MatMul":
        inner = shapes[node.input[0]][-1:]
        return math.prod(shapes[node.output[0]]) * inner[0] if inner and shapes[node.output[0]] else 0
    if node.op_type == "Gemm":
        weight = shapes[node.input[1]]
        return math.prod(weight) * shapes[node.output[0]][0] if weight and shapes[node.output[0]] else 0
    return 0
