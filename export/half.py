"""fp16 and bf16 graphs: which nodes compute in half precision, and the casts between those and the rest.

One type for each tensor, that of the node which makes it: between two fp32 nodes nothing is rounded. (ONNX Runtime's
``convert_float_to_float16`` rounds the output of every node it keeps, so an overflow between two of them stays one.)
What stays fp32 whatever the ranges: normalisations, each as one node, since TensorRT 11 ignores ``stash_type``; norms
and long sums; the first steps on pixels; ``raw_output`` and all that follows it (Softmax, TopK, the L2 norm).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, helper

from ..engine.spec import INPUT_NAME, ModelSpec, Precision
from .graph import ONNX_DOMAINS, graph_inputs
from .typed import at_opset, converted, element_types, names_read_inside, subgraphs_of

HALF_TYPES = {
    Precision.FP16: TensorProto.FLOAT16,
    Precision.INT8_FP16: TensorProto.FLOAT16,
    Precision.BF16: TensorProto.BFLOAT16,
}
"""Element type of the half-precision tensors."""

FP32_KINDS = frozenset(
    {
        "LayerNormalization",
        "RMSNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "MeanVarianceNormalization",
        "LpNormalization",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceProd",
        "CumSum",
        "TopK",
        "Range",
        "NonMaxSuppression",
        "RoiAlign",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "EyeLike",
        "Celu",
    }
)
"""Operators that lose too much in half precision, whose element type an attribute states, or (Celu) that TensorRT 11's
parser does not take in half precision."""

_NO_BF16_KINDS = frozenset({"HardSwish", "Mish", "LpPool", "GlobalLpPool", "ConvTranspose"})
"""Operators that TensorRT-RTX 1.7, whose parser TensorRT 11 shares, refuses or cannot build in bf16 but in fp16."""

_FLOAT_INPUTS = {"Resize": (1, 2)}
"""Inputs that are float32 whatever the node computes in: region and scales."""

_BF16_OPSET = 22
"""From here on Conv, pooling and most others take bfloat16."""

_HALF_SCALES_OPSET = 19
"""From here on QuantizeLinear takes scales in half precision."""

_PRELUDE = ("Cast", "Transpose", "Gather", "Sub", "Mul", "Div")
"""First steps on pixels, each at most once and in this order, as ``fold`` writes them."""


def fp32_by_rule(model: ModelProto, spec: ModelSpec, precision: Precision) -> dict[str, str]:
    """Names of the nodes that stay fp32 whatever the pictures say, and why."""
    kinds = FP32_KINDS | _NO_BF16_KINDS if precision is Precision.BF16 else FP32_KINDS
    types = element_types(model)
    kept = dict.fromkeys(_prelude(model), "first steps on pixels")
    kept |= dict.fromkeys(_head(model, spec, types), "after the raw output")
    inside = {name for node in model.graph.node for name in names_read_inside(node)}
    for node in model.graph.node:
        if node.op_type in kinds:
            kept[node.name] = node.op_type
        elif node.domain not in ONNX_DOMAINS or subgraphs_of(node):
            kept[node.name] = f"{node.op_type} is no plain ONNX operator"
        elif any(not types.get(name) for name in (*node.input, *node.output) if name):
            kept[node.name] = "of unknown element type"
        elif inside.intersection(node.output):
            kept[node.name] = "read inside a subgraph"
    return kept


def half_from(model: ModelProto, spec: ModelSpec, precision: Precision, kept: Collection[str]) -> ModelProto:
    """Graph at ``precision`` from a prepared fp32 one, which is left as it is.

    ``kept`` names nodes that stay fp32 besides those of ``fp32_by_rule``. Input, outputs and ``spec.raw_output`` keep
    their types; the metadata still says fp32. Raises ModelError when the opset cannot be raised as bf16 needs it.
    """
    low = HALF_TYPES[precision]
    copy = at_opset(model, _needed_opset(model, low))
    _Conversion(copy, low, {*fp32_by_rule(copy, spec, precision), *kept}, spec.raw_output).run()
    return copy


class _Conversion:
    """One pass over a graph in its order; casts stand before the first node that needs them."""

    def __init__(self, model: ModelProto, low: int, fp32: Collection[str], raw_output: str) -> None:
        self._graph = model.graph
        self._low = low
        self._word = TensorProto.DataType.Name(low).lower()
        self._fp32 = fp32
        self._types = element_types(model)
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._stay = {raw_output, *(value.name for value in model.graph.output)}
        self._native: dict[str, int] = {value.name: TensorProto.FLOAT for value in graph_inputs(model)}
        self._casts: dict[tuple[str, int], str] = {}
        self._nodes: list[NodeProto] = []

    def run(self) -> None:
        for node in list(self._graph.node):
            self._convert(node)
        used = {name for node in self._nodes for name in node.input}
        used |= {name for node in self._nodes for name in names_read_inside(node)}
        used |= {value.name for value in self._graph.output}
        weights = [tensor for tensor in self._weights.values() if tensor.name in used]
        del self._graph.node[:], self._graph.initializer[:], self._graph.value_info[:]
        self._graph.node.extend(self._nodes)
        self._graph.initializer.extend(weights)

    def _convert(self, node: NodeProto) -> None:
        computes_in = TensorProto.FLOAT if node.name in self._fp32 else self._low
        floats = [name for name in node.output if self._types.get(name) == TensorProto.FLOAT]
        if node.op_type != "Cast" and not self._takes_any_type(node):
            for place, name in enumerate(node.input):
                if self._types.get(name) == TensorProto.FLOAT:
                    fixed = place in _FLOAT_INPUTS.get(node.op_type, ())
                    node.input[place] = self._as(name, TensorProto.FLOAT if fixed else computes_in)
        self._nodes.append(node)
        if floats and computes_in == self._low:
            _state_type(node, self._low)
        for name in floats:
            self._native[name] = computes_in
            if name in self._stay and computes_in == self._low:
                self._give_back(node, name)

    def _takes_any_type(self, node: NodeProto) -> bool:
        """Whether a node reads one float tensor and makes none (Shape, ArgMax): its input may be of any type."""
        others = all(self._types.get(name, TensorProto.FLOAT) != TensorProto.FLOAT for name in node.output)
        return others and sum(self._types.get(name) == TensorProto.FLOAT for name in node.input) == 1

    def _give_back(self, node: NodeProto, name: str) -> None:
        """Let a cast to float32 make ``name``, from what ``node`` gives in half precision."""
        low = f"{name}/{self._word}"
        node.output[list(node.output).index(name)] = low
        self._casts[name, self._low] = low
        self._nodes.append(_cast(low, name, TensorProto.FLOAT))
        self._native[name] = TensorProto.FLOAT

    def _as(self, name: str, wanted: int) -> str:
        """Name under which a float tensor is to be had in the wanted type."""
        if name in self._weights:
            return name if wanted == TensorProto.FLOAT else self._low_weight(name)
        if self._native[name] == wanted:
            return name
        if (name, wanted) not in self._casts:
            cast = f"{name}/{'float' if wanted == TensorProto.FLOAT else self._word}"
            self._nodes.append(_cast(name, cast, wanted))
            self._casts[name, wanted] = cast
        return self._casts[name, wanted]

    def _low_weight(self, name: str) -> str:
        low = f"{name}/{self._word}"
        if low not in self._weights:
            self._weights[low] = converted(self._weights[name], self._low, low)
        return low


def _cast(source: str, target: str, kind: int) -> NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"Cast/{target}", to=kind)


def _state_type(node: NodeProto, kind: int) -> None:
    """Change the attribute that states the element type of a node's output."""
    if node.op_type == "Cast":
        _set(node, "to", kind)
    elif node.op_type == "ConstantOfShape":
        value = next((entry.t for entry in node.attribute if entry.name == "value"), None)
        zero = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])
        _set(node, "value", converted(zero if value is None else value, kind, "value"))


def _set(node: NodeProto, name: str, value: Any) -> None:
    kept = [entry for entry in node.attribute if entry.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def _prelude(model: ModelProto) -> list[str]:
    """Names of the nodes from ``images`` on that only shift and scale pixels."""
    weights = {tensor.name for tensor in model.graph.initializer}
    allowed, tensor = list(_PRELUDE), INPUT_NAME
    found: list[str] = []
    while True:
        readers = [node for node in model.graph.node if tensor in node.input]
        if len(readers) != 1 or readers[0].op_type not in allowed:
            return found
        (node,) = readers
        if any(name not in weights for name in node.input if name != tensor):
            return found
        del allowed[: allowed.index(node.op_type) + 1]
        found.append(node.name)
        tensor = node.output[0]


def _head(model: ModelProto, spec: ModelSpec, types: Mapping[str, int]) -> list[str]:
    """Names of the nodes that follow the raw output, where that is a float tensor."""
    if types.get(spec.raw_output) != TensorProto.FLOAT:
        return []
    reached, found = {spec.raw_output}, []
    for node in model.graph.node:
        if reached.intersection(node.input):
            reached.update(node.output)
            found.append(node.name)
    return found


def _needed_opset(model: ModelProto, low: int) -> int:
    if low == TensorProto.BFLOAT16:
        return _BF16_OPSET
    quantised = any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.node)
    return _HALF_SCALES_OPSET if quantised else 0
