"""Plain ONNX networks, float in and without metadata, as other tools write them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE = 8
CHANNELS = 4


def network(
    path, *, batch="batch", nhwc=False, tail=(), outputs=None, classes=6, opset=17, size=(SIZE, SIZE), inits=()
):
    """Conv, ReLU, mean over pixels, linear: tensor ``logits`` [n, classes]; ``tail`` nodes follow."""
    random = np.random.default_rng(1)
    weights = {
        "w": random.normal(0, 1, (CHANNELS, 3, 3, 3)).astype(np.float32),
        "fc": random.normal(0, 1, (CHANNELS, classes)).astype(np.float32),
        **dict(inits),
    }
    nodes = [
        helper.make_node("Conv", ["planes", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["features"]),
        helper.make_node("GlobalAveragePool", ["features"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "fc"], ["logits"]),
        *tail,
    ]
    shape = [batch, *size, 3] if nhwc else [batch, 3, *size]
    if nhwc:
        nodes.insert(0, helper.make_node("Transpose", ["x"], ["planes"], perm=[0, 3, 1, 2]))
    else:
        nodes[0].input[0] = "x"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    outputs = outputs or [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, classes])]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "plain", [x], outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, path)
    return path


def output(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def logits_of(pixels, mean, std, classes=6):
    """The network above in NumPy, float64: uint8 [n, h, w, 3] to [n, classes]."""
    random = np.random.default_rng(1)
    w = random.normal(0, 1, (CHANNELS, 3, 3, 3)).astype(np.float32).astype(np.float64)
    fc = random.normal(0, 1, (CHANNELS, classes)).astype(np.float32).astype(np.float64)
    x = ((pixels / 255.0 - np.array(mean)) / np.array(std)).transpose(0, 3, 1, 2)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    height, width = x.shape[2:]
    c = sum(
        np.einsum("nchw,oc->nohw", padded[:, :, i : i + height, j : j + width], w[:, :, i, j])
        for i in range(3)
        for j in range(3)
    )
    return np.maximum(c, 0).mean(axis=(2, 3)) @ fc
