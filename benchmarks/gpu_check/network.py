"""A convolutional network with seeded weights for the checks: needs no download and no other package than NumPy.

About 0.8 billion multiplications per picture, half of a ResNet-18. The same weights make an ONNX file and a PyTorch
function, so that engines can be held against each other.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...engine.preprocess import Preprocess
from ...engine.spec import INPUT_NAME, METADATA_KEY, ModelSpec, Task

SIZE = 224
WIDTH = 128
"""Dimensions of the embedding."""

_OPSET, _IR_VERSION = 18, 9

SPEC = ModelSpec(
    name="gpu_check",
    task=Task.EMBED,
    preprocess=Preprocess((SIZE, SIZE), (256, 256), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    raw_output="embedding",
    weights="random (seed 0)",
)


class Layer(NamedTuple):
    """A convolution and its ReLU; ``weight`` is float32 [out, in, kernel, kernel]."""

    weight: NDArray[np.float32]
    stride: int

    @property
    def padding(self) -> int:
        return int(self.weight.shape[2]) // 2


class Weights(NamedTuple):
    """Layers in order, then the mean over the picture, then ``head`` float32 [features, WIDTH]."""

    layers: tuple[Layer, ...]
    head: NDArray[np.float32]


@functools.cache
def weights() -> Weights:
    """Seeded, of the variance that keeps activations the same size through ReLUs (He et al. 2015)."""
    rng = np.random.default_rng(0)
    layers: list[Layer] = []
    channels = 3
    for out, kernel, stride in ((64, 7, 4), (128, 3, 2), *[(128, 3, 1)] * 4, (256, 3, 2), *[(256, 3, 1)] * 2):
        spread = (2 / (channels * kernel * kernel)) ** 0.5
        layers.append(Layer(rng.normal(0, spread, (out, channels, kernel, kernel)).astype(np.float32), stride))
        channels = out
    return Weights(tuple(layers), rng.normal(0, channels**-0.5, (channels, WIDTH)).astype(np.float32))


def write_onnx(path: Path) -> Path:
    """The network as `vdali export` would write it; returns ``path``."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    made = weights()
    constants = {"middle": np.float32(127.5), "scale": np.float32(64), "head": made.head}
    nodes = [
        helper.make_node("Cast", [INPUT_NAME], ["levels"], name="levels", to=TensorProto.FLOAT),
        helper.make_node("Sub", ["levels", "middle"], ["centred"], name="centred"),
        helper.make_node("Div", ["centred", "scale"], ["scaled"], name="scaled"),
        helper.make_node("Transpose", ["scaled"], ["x"], name="x", perm=[0, 3, 1, 2]),
    ]
    last = "x"
    for number, layer in enumerate(made.layers):
        constants[f"weight{number}"] = layer.weight
        convolved, name = f"conv{number}", f"relu{number}"
        pads, strides = [layer.padding] * 4, [layer.stride] * 2
        nodes.append(
            helper.make_node("Conv", [last, f"weight{number}"], [convolved], name=convolved, pads=pads, strides=strides)
        )
        nodes.append(helper.make_node("Relu", [convolved], [name], name=name))
        last = name
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pooled"], name="pooled"),
        helper.make_node("Flatten", ["pooled"], ["features"], name="features"),
        helper.make_node("MatMul", ["features", "head"], ["embedding"], name="embedding"),
    ]
    graph = helper.make_graph(
        nodes,
        SPEC.name,
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["n", SIZE, SIZE, 3])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", WIDTH])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    helper.set_model_props(model, {METADATA_KEY: SPEC.dumps()})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path
