"""Tokens and multiply-adds of attention, counted on graphs whose numbers are known in closed form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from models import tiny_classifier
from onnx import TensorProto, helper, numpy_helper
from vdali.benchmarks.sweep.tokens import attention_of

PATCH, WIDTH, CLASSES = 8, 12, 5


def one_block_transformer(path: Path, size: int) -> Path:
    """Patches of 8x8, one class token's worth of nothing, one head of attention, a linear layer; dynamic batch."""
    tokens = (size // PATCH) ** 2
    rng = np.random.default_rng(0)
    weights = {
        "patch": rng.normal(size=(WIDTH, 3, PATCH, PATCH)),
        "qkv": rng.normal(size=(WIDTH, 3 * WIDTH)),
        "head": rng.normal(size=(WIDTH, CLASSES)),
    }
    constants = {name: value.astype(np.float32) for name, value in weights.items()}
    constants |= {"flat": np.array([0, WIDTH, tokens], np.int64), "thirds": np.array([WIDTH] * 3, np.int64)}
    nodes = [
        helper.make_node("Cast", ["images"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["pixels"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["planes", "patch"], ["grid"], kernel_shape=[PATCH] * 2, strides=[PATCH] * 2),
        helper.make_node("Reshape", ["grid", "flat"], ["columns"]),
        helper.make_node("Transpose", ["columns"], ["tokens"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["tokens", "qkv"], ["all"]),
        helper.make_node("Split", ["all", "thirds"], ["q", "k", "v"], axis=2),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["mixed"]),
        helper.make_node("MatMul", ["mixed", "head"], ["out"]),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", size, size, 3])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", tokens, CLASSES])
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "block", [images], [out], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("size", [32, 64])
def test_tokens_and_attention_cost_follow_from_patches_and_width(tmp_path, size):
    found = attention_of(one_block_transformer(tmp_path / "block.onnx", size))
    tokens = (size // PATCH) ** 2
    assert found is not None
    assert found.tokens == tokens
    assert found.attention_macs == 2 * tokens**2 * WIDTH
    linear = tokens * WIDTH * (3 * PATCH**2 + 3 * WIDTH + CLASSES)
    assert found.macs == found.attention_macs + linear


def test_attention_grows_with_the_square_of_the_tokens(tmp_path):
    small = attention_of(one_block_transformer(tmp_path / "small.onnx", 32))
    large = attention_of(one_block_transformer(tmp_path / "large.onnx", 64))
    assert small is not None
    assert large is not None
    values = large.to_json(small)
    assert values["attention_cost_relative"] == 16
    assert 4 < values["cost_relative"] < 16
    assert values["attention_share"] == large.attention_macs / large.macs


def test_a_network_without_attention_has_none_though_it_ends_in_a_softmax(tmp_path):
    assert attention_of(tiny_classifier(tmp_path / "tiny.onnx")) is None
