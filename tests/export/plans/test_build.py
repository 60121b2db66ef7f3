import os
import struct

import numpy as np
import onnx
import pytest
from models import mean_colour_model, nan_colour_model, red_segmenter, tiny_classifier
from onnx import TensorProto, helper
from vdali.engine.errors import DeviceError, ModelError, UsageError
from vdali.engine.gpu_probe import probe_gpu
from vdali.engine.plans.flavour import load_flavour
from vdali.engine.plans.header import read_header
from vdali.engine.plans.options import BatchProfile, PlanOptions, known_targets
from vdali.export.plans.build import BUILT_NOT_RUN, build_plan
from vdali.export.plans.config import attach_timing_cache

IMAGES = helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", 4, 4, 3])
ADA_AND_BLACKWELL = PlanOptions(targets=("sm89", "sm120"), batch=BatchProfile(1, 32, 64))


@pytest.fixture(scope="module")
def rtx():
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: pip install 'vdali[rtx]'")
    return load_flavour("tensorrt_rtx")


def write_graph(path, nodes, outputs, inputs=(IMAGES,), opset=18):
    graph = helper.make_graph(nodes, "graph", list(inputs), outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
    return path


def float_output(*shape):
    return helper.make_tensor_value_info("y", TensorProto.FLOAT, list(shape))


@pytest.mark.parametrize(
    "make",
    [mean_colour_model, tiny_classifier, red_segmenter, lambda path: nan_colour_model(path, (1, 2, 3))],
    ids=["embed", "classify", "segment", "nan"],
)
def test_every_task_builds_for_named_gpus_without_one(rtx, tmp_path, make):
    plan = build_plan(make(tmp_path / "model.onnx"), ADA_AND_BLACKWELL, flavour=rtx)
    assert plan.state == BUILT_NOT_RUN == "built, not run"
    assert plan.build_s > 0
    assert any("Total Weights Memory" in text for severity, text in plan.messages if severity == "info")
    header = read_header(plan.data)
    assert header is not None
    assert header.targets == ("sm89", "sm120")
    assert header.version == ".".join(rtx.version.split(".")[:3])


def test_the_header_of_a_plan_names_its_targets(rtx, tmp_path):
    model = mean_colour_model(tmp_path / "model.onnx")
    for target in known_targets(rtx):
        data = build_plan(model, PlanOptions(targets=(target,)), flavour=rtx).data
        assert read_header(data).targets == (target,)
        assert struct.unpack_from("<Q", data, 16)[0] == len(data)
    assert "sm89" in read_header(build_plan(model, PlanOptions(), flavour=rtx).data).targets


def test_messages_are_those_of_one_build(rtx, tmp_path):
    first = build_plan(tiny_classifier(tmp_path / "first.onnx"), PlanOptions(), flavour=rtx)
    second = build_plan(mean_colour_model(tmp_path / "second.onnx"), PlanOptions(), flavour=rtx)
    assert any("first.onnx" in text for _, text in first.messages)
    assert not any("first.onnx" in text for _, text in second.messages)
    assert ("warning", "Make sure output top_labels has Int64 binding.") in [
        (severity, text.partition(": ")[2]) for severity, text in first.messages
    ]


def test_progress_rises_to_the_end_and_knows_the_last_time(rtx, tmp_path):
    seen = []
    model = tiny_classifier(tmp_path / "model.onnx")
    build_plan(model, PlanOptions(), flavour=rtx, progress=seen.append, expected_s=7.0)
    fractions = [moment.fraction for moment in seen]
    assert fractions == sorted(fractions)
    assert fractions[0] < 0.1
    assert fractions[-1] == 1.0
    assert len({moment.phase for moment in seen}) > 3
    assert "took 7.0 s last time" in str(seen[-1])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_exception_of_the_progress_receiver_cancels_the_build(rtx, tmp_path, error):
    def stop(moment):
        if moment.fraction > 0.3:
            raise error("enough")

    model = tiny_classifier(tmp_path / "model.onnx")
    with pytest.raises(error, match="enough"):
        build_plan(model, PlanOptions(), flavour=rtx, progress=stop)
    assert build_plan(model, PlanOptions(), flavour=rtx).data


def test_an_operator_without_implementation_is_refused_in_the_parsers_words(rtx, tmp_path):
    nodes = [
        helper.make_node("Cast", ["images"], ["x"], name="to_float", to=TensorProto.FLOAT),
        helper.make_node("NonZero", ["x"], ["y"], name="where_is_it"),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.INT64, [4, "k"])
    model = write_graph(tmp_path / "model.onnx", nodes, [output])
    with pytest.raises(ModelError) as caught:
        build_plan(model, ADA_AND_BLACKWELL, flavour=rtx)
    assert f"{rtx.title} refuses {model}" in str(caught.value)
    assert "[NonZero: where_is_it]" in str(caught.value)
    assert "NonZero plugin creator version 1 was not found in plugin registry" in str(caught.value)
    assert "CUDA driver" not in str(caught.value)


def test_a_transpose_of_bytes_is_refused_with_its_node(rtx, tmp_path):
    nodes = [
        helper.make_node("Transpose", ["images"], ["x"], name="planes", perm=[0, 3, 1, 2]),
        helper.make_node("Cast", ["x"], ["y"], name="to_float", to=TensorProto.FLOAT),
    ]
    model = write_graph(tmp_path / "model.onnx", nodes, [float_output("n", 3, 4, 4)])
    with pytest.raises(
        ModelError, match=r"\[Transpose: planes\] Invalid Node - planes\n.*has type UInt8 but must"
    ) as caught:
        build_plan(model, PlanOptions(), flavour=rtx)
    assert "CUDA driver" not in str(caught.value)


def test_a_batch_baked_in_is_refused(rtx, tmp_path):
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, [8, 4, 4, 3])
    nodes = [helper.make_node("Cast", ["images"], ["y"], to=TensorProto.FLOAT)]
    model = write_graph(tmp_path / "model.onnx", nodes, [float_output(8, 4, 4, 3)], [images])
    with pytest.raises(ModelError, match="batch is fixed at 8"):
        build_plan(model, PlanOptions(), flavour=rtx)


def test_an_open_picture_size_is_refused(rtx, tmp_path):
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", "h", 4, 3])
    nodes = [helper.make_node("Cast", ["images"], ["y"], to=TensorProto.FLOAT)]
    model = write_graph(tmp_path / "model.onnx", nodes, [float_output("n", "h", 4, 3)], [images])
    with pytest.raises(ModelError, match="dimensions besides the batch are open"):
        build_plan(model, PlanOptions(), flavour=rtx)


def test_a_workspace_too_small_is_refused_in_the_builders_words(rtx, tmp_path):
    model = tiny_classifier(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="Consider increase the allowed workspace size"):
        build_plan(model, PlanOptions(workspace_bytes=1024), flavour=rtx)


@pytest.mark.parametrize("content", [b"hello", b"", b"\x00" * 1000])
def test_a_file_that_is_no_model_is_refused(rtx, tmp_path, content):
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.onnx is not an ONNX model with outputs"):
        build_plan(tmp_path / "model.onnx", PlanOptions(), flavour=rtx)


def test_a_model_that_does_not_exist_is_an_error(rtx, tmp_path):
    with pytest.raises(ModelError, match="No model file at"):
        build_plan(tmp_path / "gone.onnx", PlanOptions(), flavour=rtx)


def test_external_data_is_found_next_to_the_model_and_not_in_the_working_folder(rtx, tmp_path, monkeypatch):
    model = tiny_classifier(tmp_path / "whole.onnx")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    split = elsewhere / "split.onnx"
    onnx.save(onnx.load(model), split, save_as_external_data=True, location="weights.bin", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"wrong")
    relative = split.relative_to(tmp_path)
    assert build_plan(relative, PlanOptions(), flavour=rtx).data
    os.unlink(elsewhere / "weights.bin")
    with pytest.raises(ModelError, match=r"Failed to open file: .*elsewhere/weights\.bin"):
        build_plan(relative, PlanOptions(), flavour=rtx)


def test_tf32_is_set_one_way_or_the_other(rtx, tmp_path):
    """Plans of a matrix product are the same bit for bit from build to build; TF32 shows in two bytes."""
    weight = np.ones((512, 512), dtype=np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 512])
    graph = helper.make_graph(
        nodes, "graph", [x], [float_output("n", 512)], [onnx.numpy_helper.from_array(weight, "w")]
    )
    model = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), model)
    plans = {tf32: build_plan(model, PlanOptions(tf32=tf32), flavour=rtx).data for tf32 in (None, False, True)}
    assert plans[None] == plans[False]
    assert plans[True] != plans[False]


@pytest.mark.filterwarnings("ignore:.*Timing cache operations are no-ops in TensorRT-RTX:DeprecationWarning")
def test_a_timing_cache_that_is_missing_or_garbage_starts_empty(rtx, tmp_path):
    """TensorRT-RTX makes no use of one, but has the same calls."""
    path = tmp_path / "timing.bin"
    config = rtx.trt.Builder(rtx.log.logger).create_builder_config()
    empty = bytes(attach_timing_cache(config, path).serialize())
    path.write_text("garbage")
    assert bytes(attach_timing_cache(config, path).serialize()) == empty
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match=r"Cannot read the timing cache .*timing\.bin: Is a directory"):
        attach_timing_cache(config, path)


def test_targets_that_do_not_exist_are_refused_by_name(rtx, tmp_path):
    model = mean_colour_model(tmp_path / "model.onnx")
    with pytest.raises(UsageError, match=r"builds for sm75, .*sm120.*, not for sm90\. H100"):
        build_plan(model, PlanOptions(targets=("sm90",)), flavour=rtx)
    if not probe_gpu().count:
        with pytest.raises(DeviceError, match="current needs a GPU"):
            build_plan(model, PlanOptions(targets=("current",)), flavour=rtx)
