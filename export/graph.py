"""Surgery on ONNX graphs: renaming, pruning, constant folding, unwrapping. Knows nothing of tasks or pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

BATCH = "n"
"""Symbol of the batch dimension in every vdali file."""

ONNX_DOMAINS = ("", "ai.onnx")

IR_VERSION = 10
"""Newest file format that ONNX Runtime 1.24 and TensorRT 11 both read."""

FOLD_BYTES = 64 << 20
"""Largest constant that folding may store: above, the nodes that make it are smaller than their result."""

_NOT_FOLDED = frozenset({"DequantizeLinear", "QuantizeLinear", "RandomNormal", "RandomUniform", "Multinomial"})
"""Quantised weights must stay quantised, and random nodes are no constants."""


def opset_of(model: ModelProto) -> int:
    """Version of the ONNX operator set."""
    return int(next((entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS), 0))


def graph_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """Inputs that are not initializers (old files list those too)."""
    initialized = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initialized]


def dims_of(value: ValueInfoProto) -> list[int | str]:
    """Shape: a number where it is fixed, else the symbol (empty where there is none)."""
    shape = value.type.tensor_type.shape
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in shape.dim]


def producers(model: ModelProto) -> dict[str, NodeProto]:
    """Node of the main graph that makes each tensor."""
    return {name: node for node in model.graph.node for name in node.output if name}


def tensor_names(model: ModelProto) -> set[str]:
    """Every name in use, subgraphs included."""
    names = {value.name for value in (*model.graph.input, *model.graph.output, *model.graph.initializer)}
    for graph in _graphs(model.graph):
        names |= {tensor.name for tensor in graph.initializer}
        names |= {name for node in graph.node for name in (*node.input, *node.output)}
    return names


def rename(model: ModelProto, names: Mapping[str, str]) -> None:
    """Give tensors new names, everywhere in the model."""
    for graph in _graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
            value.name = names.get(value.name, value.name)
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]


def make_room(model: ModelProto, reserved: Sequence[str], keep: Sequence[str]) -> None:
    """Rename the model's own tensors that bear a reserved name, except those in ``keep``."""
    used = tensor_names(model)
    clashes = sorted((used & set(reserved)) - set(keep))
    rename(model, {name: _free_name(f"core_{name}", used) for name in clashes})


def prune(model: ModelProto, output: str) -> None:
    """Make ``output`` the only output, and drop nodes and initializers that it does not need."""
    graph = model.graph
    made_by = producers(model)
    needed: set[str] = set()
    waiting = [output]
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed.add(name)
        node = made_by.get(name)
        if node is not None:
            waiting.extend(_reads(node))
    inputs = {value.name for value in graph_inputs(model)}
    _keep(graph.node, lambda node: any(name in needed for name in node.output))
    _keep(graph.initializer, lambda tensor: tensor.name in needed)
    _keep(graph.input, lambda value: value.name in inputs)
    known = next((value for value in graph.output if value.name == output), None)
    _replace(graph.output, [known or helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])


def clean(model: ModelProto) -> None:
    """Drop what no runtime needs: stale shapes, doc strings, and exporters' notes (which hold local paths)."""
    del model.metadata_props[:]
    model.doc_string = ""
    for graph in _graphs(model.graph):
        graph.doc_string = ""
        del graph.value_info[:]
        del graph.metadata_props[:]
        for entry in (*graph.node, *graph.input, *graph.output, *graph.initializer):
            entry.doc_string = ""
            del entry.metadata_props[:]
    for function in model.functions:
        function.doc_string = ""
        del function.metadata_props[:]
        for node in function.node:
            node.doc_string = ""
            del node.metadata_props[:]


def simplify(model: ModelProto) -> None:
    """Leave the nodes and constants that a runtime needs, and no notes; the only output may get another name."""
    clean(model)
    remove_identities(model)
    fold_constants(model)
    fuse_pads(model)
    prune(model, model.graph.output[0].name)


def remove_identities(model: ModelProto) -> None:
    """Take Identity nodes out of the main graph; a graph output takes the name of the tensor behind it."""
    names: dict[str, str] = {}
    kept: list[NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "Identity" and node.domain in ONNX_DOMAINS:
            names[node.output[0]] = names.get(node.input[0], node.input[0])
        else:
            kept.append(node)
    _replace(model.graph.node, kept)
    rename(model, names)


def fold_constants(model: ModelProto) -> None:
    """Compute, with ONNX Runtime, every node of the main graph that depends on constants alone.

    A position embedding resized to a fixed input size becomes a weight here (TensorRT has no antialiased Resize).
    Results above FOLD_BYTES stay computed.
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    kept: list[NodeProto] = []
    for node in graph.node:
        values = _value_of(node, constants, model.opset_import)
        if values is None:
            kept.append(node)
            continue
        for tensor in values:
            constants[tensor.name] = tensor
            graph.initializer.append(tensor)
    _replace(graph.node, kept)


def array_of(tensor: TensorProto) -> NDArray[np.generic]:
    return numpy_helper.to_array(tensor)


def _value_of(
    node: NodeProto, constants: Mapping[str, TensorProto], opsets: Sequence[onnx.OperatorSetIdProto]
) -> list[TensorProto] | None:
    """Outputs of a constant node; None when it is not constant, or too big to store."""
    names = [name for name in dict.fromkeys(node.input) if name]
    if not _is_foldable(node) or any(name not in constants for name in names):
        return None
    inputs = [constants[name] for name in names]
    if sum(bytes_of(tensor) for tensor in inputs) > FOLD_BYTES:
        return None
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "constant", [], outputs, inputs)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    arrays = session.run(None, {})
    if sum(array.nbytes for array in arrays) > FOLD_BYTES:
        return None
    return [numpy_helper.from_array(array, value.name) for array, value in zip(arrays, outputs, strict=True)]


def _is_foldable(node: NodeProto) -> bool:
    plain = node.domain in ONNX_DOMAINS and node.op_type not in _NOT_FOLDED and not _subgraphs(node)
    return plain and (node.op_type == "Constant" or any(node.input))


def fuse_pads(model: ModelProto) -> None:
    """Let convolutions pad for themselves where a Pad node puts zeros around what one convolution alone reads."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    readers: dict[str, list[NodeProto]] = {}
    for node in model.graph.node:
        for name in _reads(node):
            readers.setdefault(name, []).append(node)
    outputs = {value.name for value in model.graph.output}
    for pad in [node for node in model.graph.node if node.op_type == "Pad"]:
        following = readers.get(pad.output[0], [])
        amounts = _zero_padding(pad, weights)
        fits = len(following) == 1 and following[0].op_type == "Conv" and pad.output[0] not in outputs
        if fits and amounts and _add_pads(following[0], amounts):
            following[0].input[0] = pad.input[0]
            readers[pad.input[0]] = [*readers[pad.input[0]], following[0]]
            model.graph.node.remove(pad)


def _zero_padding(pad: NodeProto, weights: Mapping[str, TensorProto]) -> list[int]:
    """Amounts at the starts, then the ends of the spatial axes; empty where it is no such padding."""
    amounts, *rest = [array_of(weights[name]) if name in weights else None for name in pad.input[1:]]
    mode = next((entry.s for entry in pad.attribute if entry.name == "mode"), b"constant")
    value = rest[0] if rest and pad.input[2] else np.zeros(1)
    if amounts is None or value is None or value.any() or mode != b"constant" or (len(rest) > 1 and pad.input[3]):
        return []
    starts, ends = np.split(amounts, 2)
    if starts[:2].any() or ends[:2].any() or amounts.min() < 0:
        return []
    return [int(amount) for amount in (*starts[2:], *ends[2:])]


def _add_pads(conv: NodeProto, amounts: Sequence[int]) -> bool:
    """Add to a convolution's own padding; False where it computes that from shapes."""
    attributes = {entry.name: entry for entry in conv.attribute}
    if "auto_pad" in attributes and attributes["auto_pad"].s not in (b"NOTSET", b"VALID"):
        return False
    own = list(attributes["pads"].ints) if "pads" in attributes else [0] * len(amounts)
    kept = [entry for entry in conv.attribute if entry.name not in ("pads", "auto_pad")]
    _replace(conv.attribute, [*kept, helper.make_attribute("pads", [a + b for a, b in zip(own, amounts, strict=True)])])
    return True


def bytes_of(tensor: TensorProto) -> int:
    """Size of a tensor's values."""
    return int(math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for subgraph in _subgraphs(node):
            yield from _graphs(subgraph)


def _subgraphs(node: NodeProto) -> list[GraphProto]:
    found = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return found + [graph for attribute in node.attribute for graph in attribute.graphs]


def _reads(node: NodeProto) -> set[str]:
    """Names that a node and its subgraphs read."""
    names = {name for name in node.input if name}
    for subgraph in _subgraphs(node):
        for inner in _graphs(subgraph):
            names |= {name for each in inner.node for name in each.input if name}
    return names


def _free_name(name: str, used: set[str]) -> str:
    while name in used:
        name += "_"
    return name


def _keep(field: Any, wanted: Callable[[Any], bool]) -> None:
    """Drop the others in place: copying gigabytes of weights takes long, and protobuf refuses the largest."""
    for index in range(len(field) - 1, -1, -1):
        if not wanted(field[index]):
            del field[index]


def _replace(field: Any, values: Sequence[Any]) -> None:
    kept = list(values)
    del field[:]
    field.extend(kept)
