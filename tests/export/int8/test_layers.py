"""Which layers take int8 and which are left alone, each with its reason."""

from __future__ import annotations

import numpy as np
import pytest
from int8_models import attending, convolutional
from onnx import ModelProto, TensorProto, helper, numpy_helper
from vdali.export.int8.layers import Layer, Skip, int8_places


def layer(kind: str, weight: tuple[int, ...], channels: int, **attributes: int) -> ModelProto:
    """One layer on activations of ``channels`` channels."""
    shape: list[int | str] = ["n", channels] if kind in ("Gemm", "MatMul") else ["n", channels, 8, 8]
    node = helper.make_node(kind, ["x", "w"], ["y"], name="layer", **attributes)
    return graph([node], shape, {"w": np.ones(weight)})


def graph(nodes, shape, constants) -> ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    made = helper.make_graph(nodes, "graph", [x], [y], tensors)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (layer("Conv", (16, 16, 3, 3), 16), ""),
        (layer("Conv", (16, 8, 3, 3), 8), "a convolution from 8 to 16 channels"),
        (layer("Conv", (8, 16, 3, 3), 16), "a convolution from 16 to 8 channels"),
        (layer("Conv", (24, 3, 3, 3), 3), ""),
        (layer("Conv", (12, 3, 3, 3), 3), "a convolution from 3 to 12 channels"),
        (layer("Conv", (24, 1, 3, 3), 24, group=24), ""),
        (layer("Conv", (20, 1, 3, 3), 20, group=20), "a convolution from 20 to 20 channels"),
        (layer("Conv", (24, 1, 1, 1), 24, group=24), "a convolution from 24 to 24 channels"),
        (layer("Conv", (32, 8, 3, 3), 32, group=4), "a convolution from 8 to 32 channels"),
        (layer("ConvTranspose", (16, 32, 2, 2), 16), ""),
        (layer("ConvTranspose", (16, 8, 2, 2), 16), "a convolution from 16 to 8 channels"),
        (layer("ConvTranspose", (32, 16, 2, 2), 32, group=2), "transposed in groups"),
        (layer("MatMul", (16, 16), 16), ""),
        (layer("MatMul", (16, 1), 16), "a matrix of only 16 x 1"),
        (layer("MatMul", (2, 16, 16), 16), "weights of 3 dimensions"),
        (layer("Gemm", (16, 32), 16), ""),
    ],
)
def test_layers_with_too_little_to_gain_are_left_with_a_reason(model: ModelProto, reason: str) -> None:
    places = int8_places(model)
    assert places.left == ({"layer": reason} if reason else {})
    assert places.names == (() if reason else ("layer",))


@pytest.mark.parametrize(
    ("model", "axis"),
    [
        (layer("Conv", (16, 16, 3, 3), 16), 0),
        (layer("ConvTranspose", (16, 32, 2, 2), 16), 1),
        (layer("MatMul", (16, 32), 16), 1),
        (layer("Gemm", (16, 32), 16), 1),
        (layer("Gemm", (32, 16), 16, transB=1), 0),
    ],
)
def test_the_axis_is_that_of_output_channels(model: ModelProto, axis: int) -> None:
    assert int8_places(model).layers[0].axis == axis


def test_squeeze_and_excite_is_left_alone_and_the_classifier_behind_a_pooling_is_not() -> None:
    places = int8_places(convolutional()[0])
    assert places.left == {"reduced": "squeeze-and-excite", "expanded": "squeeze-and-excite"}
    assert places.names == ("first", "block", "depth", "logits", "sum")
    assert places.sources == ("centred", "first relu", "sum", "flat")


def test_products_of_two_activations_are_no_layers() -> None:
    places = int8_places(attending()[0])
    assert places.names == ("patches", "query", "key", "product")
    assert places.left == {}


def test_a_bias_is_found_where_it_is_one_constant_for_each_channel() -> None:
    layers = {each.name: each for each in int8_places(attending()[0]).layers}
    assert (layers["product"].bias_node, layers["product"].bias_place) == ("biased", 0)
    assert (layers["patches"].bias_node, layers["patches"].bias_place) == ("patches", 2)
    assert layers["query"].bias_node == ""


@pytest.mark.parametrize("attributes", [{"alpha": 2.0}, {"beta": 0.5}])
def test_a_scaled_bias_is_none(attributes: dict[str, float]) -> None:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="layer", **attributes)
    model = graph([node], ["n", 16], {"w": np.ones((16, 16)), "b": np.ones(16)})
    assert int8_places(model).layers[0].bias_node == ""


def block(main: str, other: str) -> ModelProto:
    """Two convolutions on ``x`` and their sum with, in this order, ``main`` and ``other``."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="a"),
        helper.make_node("Conv", ["x", "w"], ["b"], name="b"),
        helper.make_node("Add", [main, other], ["y"], name="sum"),
    ]
    return graph(nodes, ["n", 16, 8, 8], {"w": np.ones((16, 16, 1, 1))})


def test_of_a_residual_addition_the_input_that_is_no_convolution_is_quantised() -> None:
    assert int8_places(block("a", "x")).skips == (Skip("sum", "x", 1),)
    assert int8_places(block("x", "a")).skips == (Skip("sum", "x", 0),)


def test_of_two_convolutions_the_later_one_is_fused() -> None:
    assert int8_places(block("a", "b")).skips == (Skip("sum", "a", 0),)
    assert int8_places(block("b", "a")).skips == (Skip("sum", "a", 1),)


def test_an_addition_behind_a_convolution_that_others_read_is_left_alone() -> None:
    model = block("a", "x")
    model.graph.node.append(helper.make_node("Relu", ["a"], ["z"], name="also"))
    assert int8_places(model).skips == ()


def test_where_the_convolution_is_kept_the_addition_is_left_alone() -> None:
    places = int8_places(block("a", "x"), kept=["a"])
    assert places.skips == ()
    assert places.left == {"a": "asked for"}


def test_weights_that_two_layers_share_serve_both() -> None:
    layers = int8_places(block("a", "b")).layers
    assert layers[0] == Layer("a", "Conv", "x", "w", "a", 0, "a", 2)
    assert layers[1].weight == "w"
