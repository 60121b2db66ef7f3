from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torchvision.transforms import functional
from vdali.engine.preprocess import Preprocess, ResizeMode
from vdali.engine.spec import Task
from vdali.export.core import Core, Layout, normalised
from vdali.export.fold import fold
from vdali.export.model import export_model
from vdali.export.options import ExportOptions
from vdali.export.session import open_session

from tests.export.plain import network

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
LEVELS = ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255))


def every_level():
    """uint8 [1, 16, 16, 3]: each level once in each channel."""
    return np.repeat(np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1), 3, axis=3)


def passing(layout):
    """A network that gives its input."""
    shape = ["n", 3, 16, 16] if layout is Layout.NCHW else ["n", 16, 16, 3]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["m"]), helper.make_node("Neg", ["m"], ["y"])], "g", [x], [y]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def spec_of(mean, std, size=(16, 16)):
    return Preprocess(size=size, resize=size, mode=ResizeMode.SQUASH, mean=mean, std=std)


@pytest.mark.parametrize(("mean", "std"), [IMAGENET, CLIP, HALF, LEVELS])
@pytest.mark.parametrize("layout", list(Layout))
def test_folded_normalisation_equals_torchvisions_on_every_level(tmp_path, mean, std, layout):
    core = Core(
        model=passing(layout),
        name="passing",
        task=Task.SEGMENT,
        preprocess=spec_of(mean, std),
        input_name="x",
        raw_name="y",
        raw_shape=(3, 16, 16),
        expected=np.zeros(0),
        layout=layout,
    )
    model, _ = fold(core)
    onnx.save(model, tmp_path / "m.onnx")
    found = open_session(tmp_path / "m.onnx", also="vdali/input")(every_level())["vdali/input"]
    tensor = torch.from_numpy(every_level()).permute(0, 3, 1, 2).float() / 255
    wanted = functional.normalize(tensor, mean, std).numpy()
    if layout is Layout.NHWC:
        wanted = wanted.transpose(0, 2, 3, 1)
    assert np.abs(found - wanted).max() <= 1e-6 * max(1.0, np.abs(wanted).max())
    assert np.array_equal(normalised(every_level(), core.preprocess, layout), wanted)


def test_the_scale_goes_into_a_first_convolution_with_padding_and_stays_exact(tmp_path):
    source = network(tmp_path / "plain.onnx")
    export_model(str(source), tmp_path / "m.onnx", ExportOptions(task=Task.CLASSIFY, mean=IMAGENET[0], std=IMAGENET[1]))
    kinds = [node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node]
    assert kinds[:4] == ["Cast", "Transpose", "Sub", "Conv"]
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    values = normalised(pixels, spec_of(*IMAGENET, size=(8, 8)), Layout.NCHW)
    wanted = open_session(source)(values)["logits"]
    assert np.allclose(open_session(tmp_path / "m.onnx", also="logits")(pixels)["logits"], wanted, rtol=1e-5, atol=1e-5)


def test_the_scale_stays_a_node_where_something_else_reads_the_input_too(tmp_path):
    tail = [
        helper.make_node("GlobalAveragePool", ["x"], ["m"]),
        helper.make_node("Flatten", ["m"], ["f"]),
        helper.make_node("Concat", ["logits", "f"], ["both"], axis=1),
    ]
    outputs = [helper.make_tensor_value_info("both", TensorProto.FLOAT, ["n", 9])]
    source = network(tmp_path / "plain.onnx", tail=tail, outputs=outputs)
    export_model(str(source), tmp_path / "m.onnx", ExportOptions(task=Task.EMBED, mean=IMAGENET[0], std=IMAGENET[1]))
    assert "Mul" in [node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node]


@pytest.mark.parametrize("task", list(Task))
def test_tensorrts_parser_takes_every_head(tmp_path, task):
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT's parser comes with the extra rtx")
    path = tmp_path / "m.onnx"
    common = {"mean": IMAGENET[0], "std": IMAGENET[1]}
    if task is Task.SEGMENT:
        export_model(str(segmenter(tmp_path / "s.onnx")), path, ExportOptions(task=task, **common))
    else:
        options = {"label_offset": 1} if task is Task.CLASSIFY else {"normalize": True}
        export_model(
            str(network(tmp_path / "plain.onnx", nhwc=True)), path, ExportOptions(task=task, **options, **common)
        )
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    definition = builder.create_network(0)
    parser = trt.OnnxParser(definition, logger)
    assert parser.parse_from_file(str(path)), [parser.get_error(i).desc() for i in range(parser.num_errors)]
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = builder.create_optimization_profile()
    height, width = (16, 16) if task is Task.SEGMENT else (8, 8)
    profile.set_shape("images", *((count, height, width, 3) for count in (1, 4, 8)))
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(definition, config) is not None


def segmenter(path):
    weight = np.random.default_rng(0).normal(0, 1, (4, 3, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 16, 16])
    graph = helper.make_graph([node], "g", [x], [y], [onnx.numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
