"""int8 models on a CPU give what their Q/DQ says, with or without the instructions that int8 kernels need."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import plain_preprocess, with_spec
from onnx import TensorProto, helper, numpy_helper
from vdali.engine.backends.onnxruntime import OnnxRuntimeEngine
from vdali.engine.cpu import has_vnni
from vdali.engine.spec import METADATA_KEY, ModelSpec, Precision, Task

SIZE = (4, 4)
WIDTH = 8


def summing_model(path: Path) -> Path:
    """``embedding`` [n, 8]: the sum of all levels up to 127, through one int8 matrix product."""
    nodes = [
        helper.make_node("Cast", ["images"], ["levels"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["levels"], ["flat"]),
        helper.make_node("QuantizeLinear", ["flat", "one", "zero"], ["codes"]),
        helper.make_node("DequantizeLinear", ["codes", "one", "zero"], ["x"]),
        helper.make_node("DequantizeLinear", ["weights", "scales", "zeros"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("QuantizeLinear", ["product", "coarse", "zero"], ["product_codes"]),
        helper.make_node("DequantizeLinear", ["product_codes", "coarse", "zero"], ["embedding"]),
    ]
    constants = {
        "one": np.float32(1),
        "coarse": np.float32(64),
        "zero": np.int8(0),
        "weights": np.full((48, WIDTH), 127, np.int8),
        "scales": np.full(WIDTH, 1 / 127, np.float32),
        "zeros": np.zeros(WIDTH, np.int8),
    }
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", *SIZE, 3])
    embedding = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", WIDTH])
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "summing", [images], [embedding], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    spec = ModelSpec("summing", Task.EMBED, plain_preprocess(SIZE), Precision.INT8, raw_output="embedding")
    helper.set_model_props(model, {METADATA_KEY: spec.dumps()})
    onnx.save(model, path)
    return path


def test_products_of_large_codes_are_not_cut_off(tmp_path: Path) -> None:
    engine = OnnxRuntimeEngine(summing_model(tmp_path / "model.onnx"))
    embedding = engine.infer(np.full((3, *SIZE, 3), 127, np.uint8))["embedding"]
    np.testing.assert_allclose(embedding, np.full((3, WIDTH), 48 * 127), atol=32)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT8_FP16, Precision.FP32])
def test_the_name_says_when_int8_is_computed_in_fp32(tmp_path: Path, precision: Precision) -> None:
    path = with_spec(summing_model(tmp_path / "model.onnx"), precision=precision)
    saturates = platform.machine() in ("x86_64", "AMD64") and not has_vnni()
    expected = saturates and precision is not Precision.FP32
    assert ("int8 computed in fp32" in OnnxRuntimeEngine(path).name) == expected
