from __future__ import annotations

import hashlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from vdali.engine.backends.content import external_locations, model_content
from vdali.engine.errors import ModelError

from tests.models import tiny_classifier


def external_model(folder, values, *, location="weights.bin"):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [numpy_helper.from_array(values, "w")]
    )
    path = folder / "m.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path, save_as_external_data=True, location=location, size_threshold=0)
    return path


def test_the_content_of_a_plain_file_is_its_sha256(tmp_path):
    path = tiny_classifier(tmp_path / "m.onnx")
    assert model_content(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_one_changed_external_weight_changes_the_content_and_nothing_else_does(tmp_path):
    values = np.arange(4, dtype=np.float32)
    first = model_content(external_model(tmp_path, values))
    assert external_locations(tmp_path / "m.onnx") == ["weights.bin"]
    proto = (tmp_path / "m.onnx").read_bytes()
    (tmp_path / "m.onnx").touch()
    assert model_content(tmp_path / "m.onnx") == first
    values[2] = 7
    (tmp_path / "weights.bin").write_bytes(values.tobytes())
    assert (tmp_path / "m.onnx").read_bytes() == proto
    assert model_content(tmp_path / "m.onnx") != first


def test_external_data_in_a_subgraph_counts(tmp_path):
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.ones(4, np.float32), "v"))],
        "inner",
        [],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, [4])],
    )
    condition = helper.make_tensor_value_info("p", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    node = helper.make_node("If", ["p"], ["y"], then_branch=inner, else_branch=inner)
    model = helper.make_model(helper.make_graph([node], "g", [condition], [y]), ir_version=9)
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0, convert_attribute=True
    )
    assert external_locations(tmp_path / "m.onnx") == ["w"]


def test_missing_external_data_is_named(tmp_path):
    path = external_model(tmp_path, np.zeros(4, dtype=np.float32))
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"weights\.bin"):
        model_content(path)


def test_external_data_outside_the_models_folder_is_refused(tmp_path):
    path = external_model(tmp_path, np.zeros(4, dtype=np.float32))
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "../weights.bin"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside its own folder"):
        model_content(path)


def test_a_file_that_is_no_onnx_file_is_named(tmp_path):
    (tmp_path / "m.onnx").write_text("<html>not found</html>")
    with pytest.raises(ModelError, match=r"m\.onnx"):
        model_content(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="gone"):
        model_content(tmp_path / "gone.onnx")
