"""Which values occur inside an fp32 model on real pictures, and which of them half precision cannot hold.

ONNX Runtime's CPU provider computes fp16 graphs in fp32 and so hides an overflow; the ranges of the fp32 model show it.
Each tensor is reduced to its least and greatest value inside the graph, so memory stays that of a plain run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from .calibration import CalibrationSet
from .session import KEEP_QDQ, run_of
from .typed import copied, element_types, float_tensors

FP16_LARGEST = 65504.0
FP16_SMALLEST_NORMAL = 2.0**-14
FP16_SMALLEST = 2.0**-24

MARGIN = 8.0
"""Factor that a tensor must stay below FP16_LARGEST: other pictures reach further than those seen, and partial sums
further than the sums that a tensor holds."""

BATCH = 4


@dataclass(frozen=True, slots=True)
class TensorRange:
    """Least and greatest value of a tensor over all pictures."""

    low: float
    high: float

    @property
    def largest(self) -> float:
        """Greatest absolute value."""
        return max(abs(self.low), abs(self.high))


def measure_ranges(model: ModelProto, folder: Path, pictures: CalibrationSet) -> dict[str, TensorRange]:
    """Range of every float32 tensor that a node makes, over all pictures.

    ``folder`` is where external data lies. Raises ModelError when ONNX Runtime refuses the model.
    """
    names = float_tensors(model)
    watched = _with_extremes(model, names)
    run = run_of(watched.SerializeToString(), folder / model.graph.name, config=KEEP_QDQ)
    lows, highs = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    for batch in pictures.batches(BATCH):
        outputs = run(batch)
        lows = np.minimum(lows, [float(outputs[_least(name)]) for name in names])
        highs = np.maximum(highs, [float(outputs[_greatest(name)]) for name in names])
    return {name: TensorRange(float(lows[i]), float(highs[i])) for i, name in enumerate(names)}


def beyond_fp16(model: ModelProto, ranges: Mapping[str, TensorRange], *, margin: float = MARGIN) -> dict[str, str]:
    """Nodes of a prepared model that cannot compute in fp16, by name, and why.

    Those that make or read a tensor beyond FP16_LARGEST / ``margin``, and those that read a constant which fp16 cannot
    hold: too large, or a single number below its smallest normal one, such as the 1e-12 that guards a division, which
    would become zero. Tensors of small values are left to the gate: a layer scale of 1e-6 does no harm.
    """
    types = element_types(model)
    # "not <=" since NaN is beyond, too
    beyond = [name for name, found in ranges.items() if not found.largest <= FP16_LARGEST / margin]
    troubles = {name: f"|x| up to {ranges[name].largest:.4g} in '{name}'" for name in beyond}
    scales = {node.input[1] for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")}
    for tensor in model.graph.initializer:
        if types.get(tensor.name) == TensorProto.FLOAT:
            trouble = _scale_trouble(tensor) if tensor.name in scales else _constant_trouble(tensor)
            troubles |= {tensor.name: trouble} if trouble else {}
    found: dict[str, str] = {}
    for node in model.graph.node:
        for name in (*node.output, *node.input):
            if name in troubles:
                found.setdefault(node.name, troubles[name])
    return found


def _constant_trouble(tensor: TensorProto) -> str:
    values = np.abs(numpy_helper.to_array(tensor))
    finite = values[np.isfinite(values)]  # a mask's -inf is one in fp16, too
    largest = float(finite.max(initial=0))
    if largest > FP16_LARGEST:
        return f"constant '{tensor.name}' holds {largest:.4g}"
    if values.size == 1 and 0 < largest < FP16_SMALLEST_NORMAL:
        return f"constant '{tensor.name}' is {largest:.4g}"
    return ""


def _scale_trouble(tensor: TensorProto) -> str:
    """Scales of int8 may be small, but not zero."""
    least = float(numpy_helper.to_array(tensor).min(initial=1))
    return f"scale '{tensor.name}' is {least:.4g}" if least < FP16_SMALLEST else ""


def _with_extremes(model: ModelProto, names: list[str]) -> ModelProto:
    watched = copied(model)
    for name in names:
        for kind, output in (("ReduceMin", _least(name)), ("ReduceMax", _greatest(name))):
            watched.graph.node.append(helper.make_node(kind, [name], [output], name=output, keepdims=0))
    del watched.graph.output[:]
    watched.graph.output.extend(_scalars(names))
    return watched


def _scalars(names: list[str]) -> Iterator[object]:
    for name in names:
        yield helper.make_tensor_value_info(_least(name), TensorProto.FLOAT, [])
        yield helper.make_tensor_value_info(_greatest(name), TensorProto.FLOAT, [])


def _least(name: str) -> str:
    return f"{name}/least"


def _greatest(name: str) -> str:
    return f"{name}/greatest"
