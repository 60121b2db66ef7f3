"""Toy vdali models that every part's tests share: real ONNX files, made in milliseconds, no torch.

Each function writes ``path`` and returns it. The graphs take ``images`` uint8 [n, height, width, 3] and hold
a spec, exactly as ``vdali export`` writes them. Pictures are squashed to ``size`` unless a spec is given.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from vdali.engine.preprocess import Preprocess, ResizeMode
from vdali.engine.spec import INPUT_NAME, METADATA_KEY, ModelSpec, Task

OPSET = 18
IR_VERSION = 9


def plain_preprocess(size: tuple[int, int]) -> Preprocess:
    """Squash to ``size`` (height, width); levels reach the network as they are, divided by 255."""
    return Preprocess(size=size, resize=size, mode=ResizeMode.SQUASH, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def mean_colour_model(
    path: Path, size: tuple[int, int] = (8, 8), *, preprocess: Preprocess | None = None, normalize: bool = False
) -> Path:
    """Embed model: ``embedding`` float32 [n, 3] is the mean red, green and blue level, 0..255.

    With ``normalize`` it is divided by its L2 norm, so a black picture gives NaN.
    """
    nodes = [_node("Cast", ["images"], ["pixels"], to=TensorProto.FLOAT)]
    nodes.append(_node("ReduceMean", ["pixels", "axes"], ["mean" if normalize else "embedding"], keepdims=0))
    if normalize:
        nodes.append(_node("ReduceL2", ["mean", "last"], ["norm"], keepdims=1))
        nodes.append(_node("Div", ["mean", "norm"], ["embedding"]))
    spec = ModelSpec(
        name="mean_colour",
        task=Task.EMBED,
        preprocess=preprocess or plain_preprocess(size),
        raw_output="mean" if normalize else "embedding",
        normalize=normalize,
        weights="none",
    )
    constants = {"axes": np.array([1, 2]), "last": np.array([1])}
    return _write(path, nodes, constants, [_float("embedding", 3)], spec)


def nan_colour_model(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> Path:
    """Mean colour model whose ``embedding`` is NaN for pictures within 6 levels (sum over channels) of ``colour``."""
    nodes = [
        _node("Cast", ["images"], ["pixels"], to=TensorProto.FLOAT),
        _node("ReduceMean", ["pixels", "axes"], ["mean"], keepdims=0),
        _node("Sub", ["mean", "colour"], ["difference"]),
        _node("ReduceL1", ["difference", "last"], ["distance"], keepdims=1),
        _node("Less", ["distance", "limit"], ["close"]),
        _node("Where", ["close", "nan", "mean"], ["embedding"]),
    ]
    constants = {
        "axes": np.array([1, 2]),
        "last": np.array([1]),
        "colour": np.array([colour], dtype=np.float32),
        "limit": np.array(6.0, dtype=np.float32),
        "nan": np.array(np.nan, dtype=np.float32),
    }
    spec = ModelSpec("nan_colour", Task.EMBED, plain_preprocess(size), raw_output="embedding", weights="none")
    return _write(path, nodes, constants, [_float("embedding", 3)], spec)


def tiny_classifier(
    path: Path, size: tuple[int, int] = (16, 16), *, classes: int = 10, seed: int = 0, named: bool = True
) -> Path:
    """Classify model: a seeded linear layer on a 4 x 4 grid of mean levels; k = min(5, classes).

    ``size`` must be a multiple of 4. Class names are ``class 0``, ``class 1``, ... unless ``named`` is off.
    """
    weight = np.random.default_rng(seed).normal(0.0, 1.0, (3 * 16, classes)).astype(np.float32)
    window = [size[0] // 4, size[1] // 4]
    nodes = [
        _node("Cast", ["images"], ["pixels"], to=TensorProto.FLOAT),
        _node("Div", ["pixels", "scale"], ["unit"]),
        _node("Transpose", ["unit"], ["planes"], perm=[0, 3, 1, 2]),
        _node("AveragePool", ["planes"], ["grid"], kernel_shape=window, strides=window),
        _node("Flatten", ["grid"], ["flat"]),
        _node("MatMul", ["flat", "weight"], ["logits"]),
        _node("Softmax", ["logits"], ["scores"], axis=-1),
        _node("TopK", ["scores", "k"], ["top_scores", "top_labels"], axis=-1),
    ]
    top = min(5, classes)
    constants = {"scale": np.array(255.0, dtype=np.float32), "weight": weight, "k": np.array([top])}
    outputs = [
        _float("top_scores", top),
        helper.make_tensor_value_info("top_labels", TensorProto.INT64, ["n", top]),
    ]
    spec = ModelSpec(
        name="tiny_classifier",
        task=Task.CLASSIFY,
        preprocess=plain_preprocess(size),
        classes=tuple(f"class {i}" for i in range(classes)) if named else None,
        raw_output="logits",
        weights=f"random (seed {seed})",
    )
    return _write(path, nodes, constants, outputs, spec)


def red_segmenter(path: Path, size: tuple[int, int] = (32, 32)) -> Path:
    """Segment model: ``mask`` uint8 [n, height, width] is 1 where red > 127 and 0 elsewhere."""
    nodes = [
        _node("Cast", ["images"], ["pixels"], to=TensorProto.FLOAT),
        _node("Transpose", ["pixels"], ["planes"], perm=[0, 3, 1, 2]),
        _node("Conv", ["planes", "weight", "bias"], ["logits"]),
        _node("ArgMax", ["logits"], ["classes"], axis=1, keepdims=0),
        _node("Cast", ["classes"], ["mask"], to=TensorProto.UINT8),
    ]
    weight = np.zeros((2, 3, 1, 1), dtype=np.float32)
    weight[1, 0] = 1.0
    constants = {"weight": weight, "bias": np.array([127.5, 0.0], dtype=np.float32)}
    mask = helper.make_tensor_value_info("mask", TensorProto.UINT8, ["n", *size])
    spec = ModelSpec(
        name="red_segmenter",
        task=Task.SEGMENT,
        preprocess=plain_preprocess(size),
        classes=("background", "red"),
        raw_output="logits",
        weights="none",
    )
    return _write(path, nodes, constants, [mask], spec)


def with_spec(path: Path, **changes: object) -> Path:
    """Rewrite the spec of a vdali model file in place, with some fields changed."""
    model = onnx.load(path)
    text = next(p.value for p in model.metadata_props if p.key == METADATA_KEY)
    spec = dataclasses.replace(ModelSpec.loads(text, file=str(path)), **changes)  # type: ignore[arg-type]
    helper.set_model_props(model, {METADATA_KEY: spec.dumps()})
    onnx.save(model, path)
    return path


def _write(
    path: Path,
    nodes: list[NodeProto],
    constants: dict[str, np.ndarray],
    outputs: list[ValueInfoProto],
    spec: ModelSpec,
) -> Path:
    images = helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["n", *spec.preprocess.size, 3])
    used = {name for node in nodes for name in node.input}
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items() if name in used]
    graph = helper.make_graph(nodes, spec.name, [images], outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    helper.set_model_props(model, {METADATA_KEY: spec.dumps()})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def _node(kind: str, inputs: list[str], outputs: list[str], **attributes: object) -> NodeProto:
    return helper.make_node(kind, inputs, outputs, name=outputs[0], **attributes)


def _float(name: str, width: int) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])
