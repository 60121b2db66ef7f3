from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from vdali.engine.errors import AgreementError, ModelError
from vdali.engine.spec import Task
from vdali.export.fold import fold
from vdali.export.onnx_file import core_from_onnx
from vdali.export.options import ExportOptions
from vdali.export.verify import MIN_COSINE, expected_rows, trial_pictures, verify

from tests.export.plain import network

PICTURES = trial_pictures((8, 8))


def doctored(tmp_path, change, task=Task.CLASSIFY, **options):
    """Verify a right export after ``change`` to its graph."""
    source = network(tmp_path / "plain.onnx")
    choices = ExportOptions(task=task, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3), **options)
    core = core_from_onnx(source, choices, print)
    model, spec = fold(core)
    change(model)
    onnx.save(model, tmp_path / "m.onnx")
    return verify(tmp_path / "m.onnx", spec, core)


def initializer(model, name):
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def edited(name, edit):
    def change(model):
        tensor = initializer(model, name)
        values = numpy_helper.to_array(tensor).copy()
        tensor.CopyFrom(numpy_helper.from_array(edit(values), name))

    return change


def after_logits(kind, constants, make):
    """Insert a node between the core and ``logits``."""

    def change(model):
        node = next(node for node in model.graph.node if "logits" in node.output)
        node.output[0] = "before"
        index = list(model.graph.node).index(node) + 1
        model.graph.node.insert(index, make())
        model.graph.initializer.extend([numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()])

    return change


def test_a_right_file_agrees(tmp_path):
    found = doctored(tmp_path, lambda model: None)
    assert found.lowest > 0.999999
    assert set(found.batches) == {1, 2, 3, 8}
    assert found.batches[-3:] == (3, 8, 1)


def test_one_wrong_weight_is_found(tmp_path):
    with pytest.raises(AgreementError, match="lowest cosine"):
        doctored(tmp_path, edited("fc", lambda values: values * np.where(np.arange(6) == 2, -1, 1).astype(np.float32)))


def test_another_scale_is_found_where_cosine_sees_nothing(tmp_path):
    with pytest.raises(AgreementError, match="another scale"):
        doctored(tmp_path, edited("fc", lambda values: values * np.float32(1.05)))


def test_nan_in_the_file_alone_is_found(tmp_path):
    with pytest.raises(AgreementError, match="NaN or infinity"):
        doctored(tmp_path, edited("fc", lambda values: values * np.float32("nan")))


def test_rows_that_change_places_are_found(tmp_path):
    def swap():
        return helper.make_node("ReverseSequence", ["before", "lengths"], ["logits"], batch_axis=1, time_axis=0)

    with pytest.raises(ModelError):
        doctored(tmp_path, after_logits("ReverseSequence", {"lengths": np.full(6, 2)}, swap))


def test_rows_that_change_places_are_found_where_all_rows_are_nearly_equal(tmp_path):
    """A big constant makes every cosine 1, as random weights do."""
    source = network(
        tmp_path / "plain.onnx",
        tail=[helper.make_node("Add", ["logits", "big"], ["z"])],
        inits={"big": np.full(6, 1e4, np.float32)}.items(),
        outputs=[helper.make_tensor_value_info("z", TensorProto.FLOAT, ["b", 6])],
    )
    core = core_from_onnx(source, ExportOptions(task=Task.EMBED, mean=(0.5,) * 3, std=(0.2,) * 3), print)
    model, spec = fold(core)
    onnx.save(model, tmp_path / "m.onnx")
    assert verify(tmp_path / "m.onnx", spec, core).lowest > MIN_COSINE
    with pytest.raises(AgreementError, match="mixes the rows"):
        verify(tmp_path / "m.onnx", spec, replace(core, expected=core.expected[::-1]))


def test_scores_that_do_not_follow_from_the_logits_are_found(tmp_path):
    def no_softmax(model):
        node = next(node for node in model.graph.node if node.op_type == "Softmax")
        node.op_type = "Sigmoid"
        del node.attribute[:]

    with pytest.raises(AgreementError, match="do not follow"):
        doctored(tmp_path, no_softmax)


def test_an_embedding_that_is_not_normalised_is_found(tmp_path):
    def no_norm(model):
        node = next(node for node in model.graph.node if node.op_type == "ReduceL2")
        node.op_type = "ReduceMax"

    with pytest.raises(AgreementError, match="do not follow"):
        doctored(tmp_path, no_norm, Task.EMBED, normalize=True)


def test_a_file_that_the_runtime_refuses_is_named(tmp_path):
    def unknown(model):
        model.graph.node[-1].op_type = "NoSuchOperator"

    with pytest.raises(ModelError, match=r"ONNX Runtime cannot load .*m\.onnx"):
        doctored(tmp_path, unknown)


def test_trial_pictures_are_fixed_and_differ_in_level_and_detail():
    again = trial_pictures((8, 8))
    assert np.array_equal(PICTURES, again)
    means = PICTURES.reshape(8, -1).mean(axis=1)
    assert means.min() < 40
    assert means.max() > 215
    assert trial_pictures((5, 7)).shape == (8, 5, 7, 3)
    assert trial_pictures((1, 1)).shape == (8, 1, 1, 3)


def reference(change):
    def run(pixels):
        return {"y": change(pixels.reshape(len(pixels), -1).astype(np.float32) + 1)}

    return run


def test_a_source_is_judged_before_it_is_exported():
    assert expected_rows(reference(lambda x: x), PICTURES, what="net").shape == (8, 192)
    with pytest.raises(ModelError, match="net: batch is fixed at 2"):
        expected_rows(reference(lambda x: x.reshape(2, -1)), PICTURES, what="net")
    with pytest.raises(ModelError, match=r"net: only batches of \[1, 2\] work"):
        expected_rows(reference(lambda x: x[:2]), PICTURES, what="net")
    with pytest.raises(ModelError, match="others are in its batch"):
        expected_rows(reference(lambda x: x - x.mean(axis=0)), PICTURES, what="net")
    with pytest.raises(ModelError, match="4 of 8 trial pictures"):
        expected_rows(reference(lambda x: np.where(x.max() > 254, x, np.nan)), PICTURES, what="net")


def test_a_source_that_works_for_no_batch_shows_the_first_reason():
    def run(pixels):
        raise ValueError(f"cannot take {len(pixels)}")

    with pytest.raises(ModelError, match=r"no batch works .*cannot take 1"):
        expected_rows(run, PICTURES, what="net")
