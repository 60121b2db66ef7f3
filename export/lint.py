"""What TensorRT would refuse in a graph, or read as something else without a word; found before a minute is spent.

Each rule was tried on the parser of TensorRT-RTX 1.7, which TensorRT 11 shares. Silent are: uint8 zero points (read as
int8, so values above 127 scales are cut off), missing zero points (int8, where ONNX says uint8), infinite scales,
double inputs and outputs (narrowed to float), operators of other domains (looked up by name alone), and
``stash_type`` of a normalisation (ignored). The rest is refused by the parser, in less plain words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from ..engine.backends.content import tensors_of
from ..engine.errors import ModelError
from .graph import ONNX_DOMAINS, array_of, dims_of, graph_inputs, opset_of
from .session import load_tensor, read_model
from .typed import element_types, subgraphs_of

QUANTIZE = "QuantizeLinear"
DEQUANTIZE = "DequantizeLinear"

_QUANTIZED_TYPES = frozenset({TensorProto.INT8, TensorProto.INT4, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT4E2M1})
"""What TensorRT quantises to."""

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})
_HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_STASHING = frozenset({"LayerNormalization", "GroupNormalization"})
_INTEGER_OPERATORS = frozenset(
    {"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"}
)
_TOLD_AT_MOST = 8


class Rule(StrEnum):
    """Name of what is wrong."""

    ZERO_POINT = "zero-point"
    QUANTIZED_TYPE = "quantized-type"
    SCALE = "scale"
    ACTIVATION_SCALES = "activation-scales"
    INTEGER_OPERATOR = "integer-operator"
    FOREIGN_OPERATOR = "foreign-operator"
    ANTIALIAS = "antialias"
    DOUBLE = "double"
    FIXED_BATCH = "fixed-batch"
    OPEN_SIZE = "open-size"
    UINT8 = "uint8"
    MIXED_TYPES = "mixed-types"
    HALF_NORMALIZATION = "half-normalization"


QUANTIZATION_RULES = frozenset(
    {Rule.ZERO_POINT, Rule.QUANTIZED_TYPE, Rule.SCALE, Rule.ACTIVATION_SCALES, Rule.INTEGER_OPERATOR}
)
"""What makes int8 something else in TensorRT than in ONNX Runtime."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; ``node`` names the node, or the input or output of the graph."""

    node: str
    rule: Rule
    message: str


def lint(model: ModelProto) -> list[Finding]:
    """Everything that TensorRT would refuse or misread, in graph order; see ``read_for_lint`` for external data."""
    facts = _Facts(model)
    findings = list(_signature_findings(model))
    for node in _nodes(model.graph):
        for rule in _NODE_RULES:
            findings.extend(rule(node, facts))
    return findings


def read_for_lint(path: Path) -> ModelProto:
    """ONNX file without its weights, but with all that ``lint`` looks at: scales and zero points of external data, too.

    Raises ModelError when it cannot be read.
    """
    model = read_model(path, weights=False)
    quantising = (node for node in _nodes(model.graph) if node.op_type in (QUANTIZE, DEQUANTIZE))
    wanted = {name for node in quantising for name in node.input[1:]}
    for tensor in tensors_of(model.graph):
        if tensor.name in wanted and tensor.data_location == TensorProto.EXTERNAL:
            load_tensor(tensor, path)
    return model


def check(model: ModelProto, rules: Collection[Rule] = frozenset(Rule)) -> None:
    """Raises ModelError that names what ``lint`` finds against ``rules``."""
    findings = [finding for finding in lint(model) if finding.rule in rules]
    if not findings:
        return
    told = [f"{finding.node}: {finding.message} [{finding.rule}]" for finding in findings[:_TOLD_AT_MOST]]
    if len(findings) > len(told):
        told.append(f"and {len(findings) - len(told)} more")
    raise ModelError(
        "\n".join([f"TensorRT would refuse or misread {model.graph.name}:", *told, "Export the model again."])
    )


class _Facts:
    """What rules look up: constants by name, element types, who may read uint8."""

    def __init__(self, model: ModelProto) -> None:
        self.opset = opset_of(model)
        self.types = element_types(model)
        self.constants = dict(_constants(model.graph))
        self.functions = {(function.domain, function.name) for function in model.functions}
        self.inputs = {value.name for value in graph_inputs(model)}
        self.outputs = {value.name for value in model.graph.output}

    def array(self, name: str) -> NDArray[np.float32] | None:
        """Values of a constant, none at all where they are not loaded; None for anything else."""
        if name not in self.constants:
            return None
        tensor = self.constants[name]
        if tensor.data_location == TensorProto.EXTERNAL:
            return np.empty(0, dtype=np.float32)
        return array_of(tensor).astype(np.float32)


_Rule = Callable[[NodeProto, _Facts], Iterator[Finding]]


def _constants(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    yield from ((tensor.name, tensor) for tensor in graph.initializer)
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            yield node.output[0], node.attribute[0].t
        for subgraph in subgraphs_of(node):
            yield from _constants(subgraph)


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for subgraph in subgraphs_of(node):
            yield from _nodes(subgraph)


def _named(node: NodeProto) -> str:
    return node.name or f"{node.op_type} of {', '.join(node.output)}"


def _type_name(kind: int) -> str:
    return str(TensorProto.DataType.Name(kind)).lower()


def _signature_findings(model: ModelProto) -> Iterator[Finding]:
    inputs = graph_inputs(model)
    for value in (*inputs, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.DOUBLE:
            yield Finding(value.name, Rule.DOUBLE, "double is narrowed to float, while buffers would hold doubles")
    for value in inputs:
        yield from _shape_findings(value)
    for value in model.graph.output:
        dims = dims_of(value)
        if dims and isinstance(dims[0], int):
            yield Finding(value.name, Rule.FIXED_BATCH, f"the output's batch is fixed at {dims[0]}")


def _shape_findings(value: ValueInfoProto) -> Iterator[Finding]:
    dims = dims_of(value)
    if not dims:
        yield Finding(value.name, Rule.FIXED_BATCH, "the input has no batch dimension")
    elif isinstance(dims[0], int):
        yield Finding(value.name, Rule.FIXED_BATCH, f"the batch is fixed at {dims[0]}")
    if any(isinstance(dim, str) for dim in dims[1:]):
        yield Finding(value.name, Rule.OPEN_SIZE, f"dimensions besides the batch are open: {dims}")


def _zero_point_findings(node: NodeProto, facts: _Facts) -> Iterator[Finding]:
    if node.op_type not in (QUANTIZE, DEQUANTIZE):
        return
    if len(node.input) < 3 or not node.input[2]:
        yield Finding(_named(node), Rule.ZERO_POINT, "no zero point: ONNX takes uint8 then, TensorRT int8")
        return
    values = facts.array(node.input[2])
    if values is None:
        yield Finding(_named(node), Rule.ZERO_POINT, f"zero point '{node.input[2]}' is not a constant")
    elif values.any():
        yield Finding(_named(node), Rule.ZERO_POINT, "zero point is not 0")


def _quantized_type_findings(node: NodeProto, facts: _Facts) -> Iterator[Finding]:
    if node.op_type not in (QUANTIZE, DEQUANTIZE):
        return
    kind = facts.types.get(node.output[0] if node.op_type == QUANTIZE else node.input[0], 0)
    if kind == TensorProto.INT32:
        yield Finding(_named(node), Rule.QUANTIZED_TYPE, "int32 (a bias) through DequantizeLinear")
    elif kind and kind not in _QUANTIZED_TYPES:
        yield Finding(_named(node), Rule.QUANTIZED_TYPE, f"quantised to {_type_name(kind)}, int8 is needed")


def _scale_findings(node: NodeProto, facts: _Facts) -> Iterator[Finding]:
    if node.op_type not in (QUANTIZE, DEQUANTIZE):
        return
    scales = facts.array(node.input[1])
    if scales is None:
        yield Finding(_named(node), Rule.SCALE, f"scale '{node.input[1]}' is not a constant")
        return
    if not (np.isfinite(scales) & (scales > 0)).all():
        bad = scales[~(np.isfinite(scales) & (scales > 0))].flat[0]
        yield Finding(_named(node), Rule.SCALE, f"scale {bad:g}: scales must be positive and finite")
    if scales.size < 2:
        return
    weights = facts.constants.get(node.input[0])
    if weights is None:
        yield Finding(_named(node), Rule.ACTIVATION_SCALES, f"{scales.size} scales for an activation, which takes one")
    elif _axis_size(node, weights) != scales.size:
        yield Finding(
            _named(node), Rule.SCALE, f"{scales.size} scales for {_axis_size(node, weights)} channels of the weights"
        )


def _axis_size(node: NodeProto, weights: TensorProto) -> int:
    axis = next((entry.i for entry in node.attribute if entry.name == "axis"), 1)
    return int(weights.dims[axis]) if -len(weights.dims) <= axis < len(weights.dims) else 0


def _operator_findings(node: NodeProto, facts: _Facts) -> Iterator[Finding]:
    if node.domain not in ONNX_DOMAINS and (node.domain, node.op_type) not in facts.functions:
        yield Finding(_named(node), Rule.FOREIGN_OPERATOR, f"{node.op_type} of domain {node.domain}: no ONNX operator")
    elif node.op_type in _INTEGER_OPERATORS:
        yield Finding(_named(node), Rule.INTEGER_OPERATOR, f"{node.op_type}: only QuantizeLinear/DequantizeLinear work")
    elif node.op_type == "Resize" and any(entry.name == "antialias" and entry.i for entry in node.attribute):
        yield Finding(_named(node), Rule.ANTIALIAS, "antialiased Resize")


def _uint8_findings(node: NodeProto, facts: _Facts) -> Iterator[Finding]:
    """Pictures come in as uint8 and masks go out as uint8, each through a Cast; in between there is none."""
    if node.op_type in (QUANTIZE, DEQUANTIZE):
        return
    for name in node.input:
        if facts.types.get(name) == TensorProto.UINT8 and (node.op_type != "Cast" or name not in facts.inputs):
            yield Finding(_named(node), Rule.UINT8, f"reads '{name}' as uint8; only a Cast of an input may")
    for name in node.output:
        if facts.types.get(name) == TensorProto.UINT8 and (node.op_type != "Cast" or name not in facts.outputs):
            yield Finding(_named(node), Rule.UINT8, f"makes '{name}' as uint8; only a Cast to an output may")


def _mixed_findings(node: NodeProto, facts: _Facts) -> Iterator[Finding]:
    if node.op_type in (QUANTIZE, DEQUANTIZE):  # a scale may be float32 whatever the data is
        return
    for kinds in _floats_by_parameter(node, facts).values():
        if len(kinds) > 1:
            words = " and ".join(sorted(map(_type_name, kinds)))
            yield Finding(_named(node), Rule.MIXED_TYPES, f"{node.op_type} reads {words}; a Cast is missing")


def _floats_by_parameter(node: NodeProto, facts: _Facts) -> Mapping[str, set[int]]:
    """Floating-point types that a node reads, by the operator's type parameter (T, T1, ...)."""
    found: dict[str, set[int]] = {}
    if not onnx.defs.has(node.op_type, facts.opset) or node.domain not in ONNX_DOMAINS:
        return found
    formal = onnx.defs.get_schema(node.op_type, facts.opset).inputs
    for place, name in enumerate(node.input):
        parameter = formal[min(place, len(formal) - 1)]
        kind = facts.types.get(name, 0)
        if kind in _FLOATS and parameter.is_homogeneous:
            found.setdefault(parameter.type_str, set()).add(kind)
    return found


def _normalization_findings(node: NodeProto, facts: _Facts) -> Iterator[Finding]:
    if node.op_type not in _STASHING or facts.types.get(node.input[0], 0) not in _HALVES:
        return
    if next((entry.i for entry in node.attribute if entry.name == "stash_type"), TensorProto.FLOAT) in _HALVES:
        return
    yield Finding(
        _named(node), Rule.HALF_NORMALIZATION, "statistics would be in half precision: put casts to float around it"
    )


_NODE_RULES: tuple[_Rule, ...] = (
    _zero_point_findings,
    _quantized_type_findings,
    _scale_findings,
    _operator_findings,
    _uint8_findings,
    _mixed_findings,
    _normalization_findings,
)
