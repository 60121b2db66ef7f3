"""Whether a graph computes at the precision that it states: a word in the metadata alone is none."""

from __future__ import annotations

from onnx import ModelProto

from ..engine.errors import ModelError
from ..engine.spec import Precision
from .half import HALF_TYPES
from .int8.layers import LAYER_KINDS
from .typed import element_types


def computes_at(model: ModelProto, precision: Precision) -> bool:
    """Whether any node computes at ``precision``; fp32 and tf32 ask for nothing."""
    half = precision not in HALF_TYPES or _has_half(model, HALF_TYPES[precision])
    int8 = precision not in (Precision.INT8, Precision.INT8_FP16) or _has_int8(model)
    return half and int8


def check_computed(model: ModelProto, precision: Precision, *, file: str) -> None:
    """Raises ModelError for a model that states ``precision`` and computes nothing in it."""
    if not computes_at(model, precision):
        raise ModelError(
            f"{file} says {precision}, but nothing in it computes in {precision}. Choose another precision, or make it "
            "again from its fp32 file."
        )


def _has_half(model: ModelProto, kind: int) -> bool:
    types = element_types(model)
    return any(types.get(name) == kind for node in model.graph.node if node.op_type != "Cast" for name in node.output)


def _has_int8(model: ModelProto) -> bool:
    """Whether a layer reads its inputs from DequantizeLinear."""
    read = {name for node in model.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    return any(read.intersection(node.input) for node in model.graph.node if node.op_type in LAYER_KINDS)
