"""Half precision as a GPU computes it, on a CPU: fp32 arithmetic, and every half-precision tensor really rounded.

ONNX Runtime's CPU provider runs fp16 nodes in fp32 and drops the casts between them, so that an overflow goes unseen,
and has no bf16 kernels at all. Casts that a graph states itself it obeys: here each tensor passes through two of them.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto, helper

from .typed import copied, element_types

LOW_TYPES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)

_EXACT = frozenset(
    {
        "Concat",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "MaxPool",
        "Pad",
        "Relu",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that only choose among values: what they give is rounded already."""


def is_half(model: ModelProto) -> bool:
    """Whether any tensor of the main graph is fp16 or bf16."""
    weights = any(tensor.data_type in LOW_TYPES for tensor in model.graph.initializer)
    return weights or any(_stated(node) in LOW_TYPES for node in model.graph.node)


def rounded(model: ModelProto) -> ModelProto:
    """fp32 copy of a half-precision graph that computes the same values, overflow to infinity included."""
    types = element_types(model)
    copy = copied(model)
    nodes: list[NodeProto] = []
    for tensor in copy.graph.initializer:
        if tensor.data_type in LOW_TYPES:
            stored = f"{tensor.name}/stored"
            nodes.append(_cast(stored, tensor.name, TensorProto.FLOAT))
            tensor.name = stored
    for node in copy.graph.node:
        nodes.append(node)
        for place, name in enumerate(node.output):
            kind = types.get(name)
            if kind in LOW_TYPES and node.op_type not in _EXACT:
                node.output[place] = f"{name}/exact"
                nodes.append(_cast(f"{name}/exact", f"{name}/rounded", kind))
                nodes.append(_cast(f"{name}/rounded", name, TensorProto.FLOAT))
    del copy.graph.node[:], copy.graph.value_info[:]
    copy.graph.node.extend(nodes)
    return copy


def _stated(node: NodeProto) -> int | None:
    """Element type that an attribute gives to a node's output."""
    for entry in node.attribute:
        if node.op_type == "Cast" and entry.name == "to":
            return int(entry.i)
        if node.op_type == "ConstantOfShape" and entry.name == "value":
            return int(entry.t.data_type)
    return None


def _cast(source: str, target: str, kind: int) -> NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"Rounding/{target}", to=kind)
