"""Graphs that precision passes work on: every node has a name of its own, every tensor a known element type."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter
from google.protobuf.message import EncodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..engine.errors import ModelError
from .graph import ONNX_DOMAINS, opset_of


def prepared(model: ModelProto) -> ModelProto:
    """Copy with functions inlined, constants as initializers and unique node names.

    Names that exist are kept, so that nodes can be told by name before and after a conversion.
    """
    copy = copied(model)
    if copy.functions:
        copy = onnx.inliner.inline_local_functions(copy)
    _lift_constants(copy.graph)
    used: set[str] = set()
    for node in copy.graph.node:
        node.name = _free(node.name or f"{node.op_type}_{node.output[0]}", used)
        used.add(node.name)
    return copy


def at_opset(model: ModelProto, opset: int) -> ModelProto:
    """The model at ``opset`` or above, prepared; raises ModelError when it cannot be raised."""
    if opset_of(model) >= opset:
        return prepared(model)
    try:
        return prepared(onnx.version_converter.convert_version(model, opset))
    except (onnx.version_converter.ConvertError, RuntimeError, EncodeError) as error:
        raise ModelError(
            f"{model.graph.name} has opset {opset_of(model)} and cannot be raised to {opset}, which this precision "
            f"needs: {error}. Choose fp16, or export the model again with a later opset."
        ) from error


def element_types(model: ModelProto) -> dict[str, int]:
    """Element type of each tensor of the main graph that shape inference can tell (TensorProto.DataType)."""
    declared = {value.name for value in model.graph.input}
    # weights stand among the inputs, since 2 GiB of them or more cannot pass through protobuf
    weights = [
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
        if tensor.name not in declared
    ]
    bare = GraphProto(
        name=model.graph.name,
        node=model.graph.node,
        input=[*model.graph.input, *weights],
        output=model.graph.output,
        value_info=model.graph.value_info,
    )
    light = ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions, graph=bare
    )
    graph = onnx.shape_inference.infer_shapes(light).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name: int(value.type.tensor_type.elem_type) for value in values}


def float_tensors(model: ModelProto) -> list[str]:
    """Names of the float32 tensors that nodes of the main graph make, in their order."""
    types = element_types(model)
    return [name for node in model.graph.node for name in node.output if types.get(name) == TensorProto.FLOAT]


def converted(tensor: TensorProto, kind: int, name: str) -> TensorProto:
    """Tensor rounded to another element type: to the nearest value, ties to even."""
    with np.errstate(over="ignore"):
        values = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(kind))
    return numpy_helper.from_array(values, name)


def copied(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def subgraphs_of(node: NodeProto) -> list[GraphProto]:
    """Bodies of If, Loop and Scan."""
    found = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return found + [graph for attribute in node.attribute for graph in attribute.graphs]


def names_read_inside(node: NodeProto) -> set[str]:
    """Names that the subgraphs of a node read."""
    return set().union(*(_names_read(graph) for graph in subgraphs_of(node)))


def _names_read(graph: GraphProto) -> set[str]:
    names = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    return names.union(*(names_read_inside(node) for node in graph.node))


def _lift_constants(graph: GraphProto) -> None:
    """Turn the Constant nodes of the main graph into initializers."""
    kept = []
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            graph.initializer.append(_constant_of(node))
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)


def _constant_of(node: NodeProto) -> TensorProto:
    (attribute,) = node.attribute
    value = helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        tensor = TensorProto()
        tensor.CopyFrom(value)
        tensor.name = node.output[0]
        return tensor
    kind = np.float32 if attribute.name.startswith("value_float") else np.int64
    return numpy_helper.from_array(np.array(value, dtype=kind), node.output[0])


def _free(name: str, used: Collection[str]) -> str:
    while name in used:
        name += "_"
    return name
