"""Toy vdali models whose precision matters: values that overflow, cancel or need fp32; written in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from models import plain_preprocess
from onnx import NodeProto, TensorProto, helper, numpy_helper
from vdali.engine.spec import INPUT_NAME, METADATA_KEY, ModelSpec, Task

WIDTH = 8
SIZE = (8, 8)
STEPS = (
    helper.make_node("Cast", ["images"], ["pixels"], name="cast", to=TensorProto.FLOAT),
    helper.make_node("Div", ["pixels", "level"], ["unit"], name="unit"),
    helper.make_node("ReduceMean", ["unit", "axes"], ["mean"], name="mean", keepdims=0),
    helper.make_node("MatMul", ["mean", "weight"], ["features"], name="linear"),
)
"""From pictures to ``features`` float32 [n, WIDTH], each a weighted mean of the three channels."""


def embedder(
    path: Path,
    steps: Sequence[tuple[str, Sequence[str], Mapping[str, Any]]],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 18,
    name: str = "toy",
) -> Path:
    """Embed model: ``features`` go through ``steps`` (operator, inputs, attributes), the last gives ``embedding``.

    The node of step i is named ``step i`` and gives the tensor ``t<i>``. Constants are float32 unless they are arrays.
    """
    nodes = [_copied(node) for node in STEPS]
    for index, (kind, inputs, attributes) in enumerate(steps):
        output = "embedding" if index == len(steps) - 1 else f"t{index}"
        nodes.append(helper.make_node(kind, inputs, [output], name=f"step {index}", **attributes))
    weight = np.random.default_rng(1).uniform(0.5, 2, (3, WIDTH)).astype(np.float32)
    values = {"level": 255.0, "axes": np.array([1, 2]), "weight": weight, **(constants or {})}
    initializers = [
        numpy_helper.from_array(value if isinstance(value, np.ndarray) else np.float32(value)[()], key)
        for key, value in values.items()
    ]
    spec = ModelSpec(name, Task.EMBED, plain_preprocess(SIZE), raw_output="embedding", weights="random (seed 1)")
    images = helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["n", *SIZE, 3])
    output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", WIDTH])
    graph = helper.make_graph(nodes, name, [images], [output], initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    helper.set_model_props(model, {METADATA_KEY: spec.dumps()})
    onnx.save(model, path)
    return path


def overflowing(path: Path) -> Path:
    """Embed model with values up to 450,000 between its layers, and harmless ones at its ends."""
    steps = [
        ("Mul", ["features", "factor"], {}),
        ("Mul", ["t0", "factor"], {}),
        ("Div", ["t1", "factor"], {}),
        ("Div", ["t2", "factor"], {}),
    ]
    return embedder(path, steps, {"factor": 300.0}, name="overflowing")


def cancelling(path: Path) -> Path:
    """Embed model that adds 2,000 and takes it away again: fp16 is 1 apart there, so it loses what is below."""
    steps = [("Add", ["features", "far"], {}), ("Sub", ["t0", "far"], {}), ("Mul", ["t1", "two"], {})]
    return embedder(path, steps, {"far": 2000.0, "two": 2.0}, name="cancelling")


def normalizing(path: Path) -> Path:
    """Embed model with a LayerNormalization between two linear layers."""
    steps = [
        ("LayerNormalization", ["features", "gain", "shift"], {"epsilon": 1e-5}),
        ("MatMul", ["t0", "mix"], {}),
        ("Tanh", ["t1"], {}),
    ]
    random = np.random.default_rng(2)
    constants = {
        "gain": random.uniform(0.5, 2, WIDTH).astype(np.float32),
        "shift": random.normal(0, 1, WIDTH).astype(np.float32),
        "mix": random.normal(0, 1, (WIDTH, WIDTH)).astype(np.float32),
    }
    return embedder(path, steps, constants, name="normalizing")


def small_convnet(path: Path) -> Path:
    """Classify model of 10 classes: three convolutions and a matrix product, seeded; ``logits`` follow the picture."""
    random = np.random.default_rng(5)
    level = np.array(255, dtype=np.float32)
    constants = {"level": level, "axes": np.array([2, 3]), "k": np.array([5])}
    for name, shape in (("w0", (16, 3, 3, 3)), ("w1", (32, 16, 3, 3)), ("w2", (32, 32, 3, 3))):
        constants[name] = random.normal(0, (2 / (shape[1] * 9)) ** 0.5, shape).astype(np.float32)
    constants["w3"] = random.normal(0, 1, (32, 16)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["images"], ["pixels"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["pixels"], ["planes"], name="planes", perm=[0, 3, 1, 2]),
        helper.make_node("Div", ["planes", "level"], ["r0"], name="unit"),
    ]
    for index in range(3):
        nodes.append(helper.make_node("Conv", [f"r{index}", f"w{index}"], [f"c{index}"], name=f"conv {index}"))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index + 1}"], name=f"relu {index}"))
    nodes += [
        helper.make_node("ReduceMean", ["r3", "axes"], ["pooled"], name="pool", keepdims=0),
        helper.make_node("MatMul", ["pooled", "w3"], ["logits"], name="classes"),
        helper.make_node("Softmax", ["logits"], ["scores"], name="softmax", axis=-1),
        helper.make_node("TopK", ["scores", "k"], ["top_scores", "top_labels"], name="top", axis=-1),
    ]
    spec = ModelSpec("small_convnet", Task.CLASSIFY, plain_preprocess((16, 16)), raw_output="logits", weights="random")
    images = helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["n", 16, 16, 3])
    outputs = [
        helper.make_tensor_value_info("top_scores", TensorProto.FLOAT, ["n", 5]),
        helper.make_tensor_value_info("top_labels", TensorProto.INT64, ["n", 5]),
    ]
    initializers = [numpy_helper.from_array(value, key) for key, value in constants.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "small_convnet", [images], outputs, initializers),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    helper.set_model_props(model, {METADATA_KEY: spec.dumps()})
    onnx.save(model, path)
    return path


def quantized(path: Path) -> Path:
    """int8 embed model of ``summing``, its weights and activations near the ends of their ranges."""
    int8, zero = np.full((WIDTH, WIDTH), 127, dtype=np.int8), np.array(0, dtype=np.int8)
    steps = [
        ("QuantizeLinear", ["features", "scale", "zero"], {}),
        ("DequantizeLinear", ["t0", "scale", "zero"], {}),
        ("DequantizeLinear", ["mix int8", "weight scale", "zero"], {}),
        ("MatMul", ["t1", "t2"], {}),
        ("QuantizeLinear", ["t3", "sum scale", "zero"], {}),
        ("DequantizeLinear", ["t4", "sum scale", "zero"], {}),
    ]
    constants = {"mix int8": int8, "zero": zero, "weight scale": 1 / 127, "scale": 6 / 127, "sum scale": 48 / 127}
    return embedder(path, steps, constants, name="summing")


def summing(path: Path) -> Path:
    """Embed model that adds up its features."""
    return embedder(
        path, [("MatMul", ["features", "mix"], {})], {"mix": np.ones((WIDTH, WIDTH), dtype=np.float32)}, name="summing"
    )


def node_of(model: onnx.ModelProto, name: str) -> NodeProto:
    return next(node for node in model.graph.node if node.name == name)


def scaled(path: Path, target: Path, weight: str, factor: float) -> Path:
    """Copy of a model with one constant multiplied by ``factor``, in its own element type."""
    return _changed(path, target, weight, lambda values: values * values.dtype.type(factor))


def with_nan(path: Path, target: Path, weight: str) -> Path:
    """Copy of a model with one value of a constant replaced by NaN."""

    def broken(values: np.ndarray) -> np.ndarray:
        values = values.copy()
        values.flat[0] = np.nan
        return values

    return _changed(path, target, weight, broken)


def _changed(path: Path, target: Path, weight: str, change: Any) -> Path:
    model = onnx.load(path)
    tensor = next(entry for entry in model.graph.initializer if entry.name == weight)
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), weight))
    onnx.save(model, target)
    return target


def _copied(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy
