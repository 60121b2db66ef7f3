"""Toy vdali models with what int8 has to tell apart: residual additions, gates, few channels, attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from models import plain_preprocess
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from PIL import Image
from vdali.engine.spec import INPUT_NAME, METADATA_KEY, ModelSpec, Task
from vdali.export.calibration import CalibrationSet, content_of

SIDE = 16
SIZE = (SIDE, SIDE)
WIDTH = 16
TOKENS = SIDE * SIDE // 16


def pictures(count: int = 12, *, seed: int = 0) -> CalibrationSet:
    """Smooth random pictures, uint8 [count, 16, 16, 3]."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    pixels = np.stack([np.asarray(Image.fromarray(each).resize(SIZE, Image.Resampling.BICUBIC)) for each in coarse])
    ids = tuple(f"picture {number}" for number in range(count))
    return CalibrationSet(ids, pixels, content_of(ids, pixels), (), f"{count} made pictures")


def convolutional(*, opset: int = 18, dead_channel: bool = False) -> tuple[ModelProto, ModelSpec]:
    """Classifier: first convolution, residual block, depthwise convolution, squeeze-and-excite, linear layer.

    Nodes are named after their outputs. With ``dead_channel`` one channel of the block's convolution has no weights.
    """
    nodes = [
        _node("Cast", ["images"], "pixels", to=TensorProto.FLOAT),
        _node("Transpose", ["pixels"], "planes", perm=[0, 3, 1, 2]),
        _node("Sub", ["planes", "middle"], "centred"),
        _node("Conv", ["centred", "w first", "b first"], "first", pads=[1, 1, 1, 1]),
        _node("Relu", ["first"], "first relu"),
        _node("Conv", ["first relu", "w block"], "block", pads=[1, 1, 1, 1]),
        _node("Add", ["block", "first relu"], "sum"),
        _node("Conv", ["sum", "w depth", "b depth"], "depth", group=WIDTH, pads=[1, 1, 1, 1]),
        _node("Clip", ["depth", "low", "high"], "depth relu6"),
        _node("GlobalAveragePool", ["depth relu6"], "squeezed"),
        _node("Conv", ["squeezed", "w reduce"], "reduced"),
        _node("Relu", ["reduced"], "reduced relu"),
        _node("Conv", ["reduced relu", "w expand"], "expanded"),
        _node("HardSigmoid", ["expanded"], "gate"),
        _node("Mul", ["depth relu6", "gate"], "excited"),
        _node("GlobalAveragePool", ["excited"], "pooled"),
        _node("Flatten", ["pooled"], "flat"),
        _node("Gemm", ["flat", "w linear", "b linear"], "logits", transB=1),
        _node("Softmax", ["logits"], "scores", axis=-1),
    ]
    random = np.random.default_rng(5)
    constants: dict[str, Any] = {
        "middle": np.float32(128),
        "w first": random.normal(0, 0.004, (WIDTH, 3, 3, 3)),
        "b first": random.normal(0, 0.1, WIDTH),
        "w block": random.normal(0, 0.1, (WIDTH, WIDTH, 3, 3)),
        "w depth": random.normal(0, 0.3, (WIDTH, 1, 3, 3)),
        "b depth": random.normal(0.5, 0.1, WIDTH),
        "w reduce": random.normal(0, 0.3, (WIDTH, WIDTH, 1, 1)),
        "w expand": random.normal(0, 0.3, (WIDTH, WIDTH, 1, 1)),
        "w linear": random.normal(0, 0.5, (20, WIDTH)),
        "b linear": random.normal(0, 0.1, 20),
        "low": np.float32(0),
        "high": np.float32(6),
        "k": np.array([5]),
    }
    if dead_channel:
        constants["w block"][3] = 0
    topk = helper.make_node("TopK", ["scores", "k"], ["top_scores", "top_labels"], name="top", axis=-1)
    outputs = [
        helper.make_tensor_value_info("top_scores", TensorProto.FLOAT, ["n", 5]),
        helper.make_tensor_value_info("top_labels", TensorProto.INT64, ["n", 5]),
    ]
    spec = ModelSpec("convolutional", Task.CLASSIFY, plain_preprocess(SIZE), raw_output="logits", weights="random")
    return _model([*nodes, topk], constants, outputs, spec, opset), spec


def attending() -> tuple[ModelProto, ModelSpec]:
    """Embed model: patches, LayerNormalization, one head of attention without a bias, a linear layer with one."""
    nodes = [
        _node("Cast", ["images"], "pixels", to=TensorProto.FLOAT),
        _node("Transpose", ["pixels"], "planes", perm=[0, 3, 1, 2]),
        _node("Conv", ["planes", "w patch", "b patch"], "patches", strides=[4, 4]),
        _node("Reshape", ["patches", "rows"], "channels"),
        _node("Transpose", ["channels"], "tokens", perm=[0, 2, 1]),
        _node("LayerNormalization", ["tokens", "gain", "shift"], "normal"),
        _node("MatMul", ["normal", "w query"], "query"),
        _node("MatMul", ["normal", "w key"], "key"),
        _node("Transpose", ["key"], "turned", perm=[0, 2, 1]),
        _node("MatMul", ["query", "turned"], "likeness"),
        _node("Softmax", ["likeness"], "attention", axis=-1),
        _node("MatMul", ["attention", "normal"], "attended"),
        _node("MatMul", ["attended", "w out"], "product"),
        _node("Add", ["b out", "product"], "biased"),
        _node("Add", ["biased", "tokens"], "residual"),
        _node("ReduceMean", ["residual", "middle axis"], "embedding", keepdims=0),
    ]
    random = np.random.default_rng(6)
    constants = {
        "w patch": random.normal(0, 0.002, (WIDTH, 3, 4, 4)),
        "b patch": random.normal(0, 0.1, WIDTH),
        "rows": np.array([0, WIDTH, TOKENS]),
        "gain": random.uniform(0.5, 2, WIDTH),
        "shift": random.normal(0, 0.3, WIDTH),
        "w query": random.normal(0, 0.3, (WIDTH, WIDTH)),
        "w key": random.normal(0, 0.3, (WIDTH, WIDTH)),
        "w out": random.normal(0, 0.3, (WIDTH, WIDTH)),
        "b out": random.normal(0, 0.1, WIDTH),
        "middle axis": np.array([1]),
    }
    outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", WIDTH])]
    spec = ModelSpec("attending", Task.EMBED, plain_preprocess(SIZE), raw_output="embedding", weights="random")
    return _model(nodes, constants, outputs, spec, 18), spec


def constant(model: ModelProto, name: str) -> NDArray[Any]:
    return numpy_helper.to_array(next(tensor for tensor in model.graph.initializer if tensor.name == name))


def with_constant(model: ModelProto, name: str, values: NDArray[Any]) -> ModelProto:
    """Copy of a model with one constant replaced."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    tensor = next(tensor for tensor in copy.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(values, name))
    return copy


def _node(kind: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(kind, inputs, [output], name=output, **attributes)


def _model(
    nodes: list[NodeProto],
    constants: Mapping[str, Any],
    outputs: list[onnx.ValueInfoProto],
    spec: ModelSpec,
    opset: int,
) -> ModelProto:
    images = helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["n", *SIZE, 3])
    tensors = [
        numpy_helper.from_array(
            np.asarray(value, np.int64 if np.asarray(value).dtype.kind == "i" else np.float32), name
        )
        for name, value in constants.items()
    ]
    graph = helper.make_graph(nodes, spec.name, [images], outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    helper.set_model_props(model, {METADATA_KEY: spec.dumps()})
    onnx.checker.check_model(model, full_check=True)
    return model
