from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image
from vdali.engine.errors import ModelError, UsageError
from vdali.engine.preprocess import ColorOrder, ResizeMode
from vdali.engine.spec import METADATA_KEY, ModelSpec, Task
from vdali.export.model import export_model
from vdali.export.options import ExportOptions
from vdali.export.session import open_session
from vdali.export.verify import trial_pictures

from tests.export.plain import SIZE, logits_of, network, output
from tests.models import tiny_classifier

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
CORAL = (128 / 255,) * 3


def export(source, out, task=Task.CLASSIFY, mean=MEAN, std=STD, **options):
    lines = []
    spec = export_model(str(source), out, ExportOptions(task=task, mean=mean, std=std, **options), lines.append)
    return open_session(out, also=spec.raw_output), spec, lines


def softmax(values):
    shifted = np.exp(values - values.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def refused(source, tmp_path, error=ModelError, **options):
    with pytest.raises(error) as caught:
        export(source, tmp_path / "refused.onnx", **options)
    assert not (tmp_path / "refused.onnx").exists()
    return str(caught.value)


PICTURES = trial_pictures((SIZE, SIZE))


@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("order", list(ColorOrder))
def test_both_layouts_and_channel_orders_give_the_same_function(tmp_path, nhwc, order):
    source = network(tmp_path / "plain.onnx", nhwc=nhwc)
    run, spec, _ = export(source, tmp_path / "out.onnx", color_order=order)
    seen = PICTURES[..., ::-1] if order is ColorOrder.BGR else PICTURES
    found = run(PICTURES)
    wanted = logits_of(seen, MEAN, STD)
    assert np.allclose(found["logits"], wanted, atol=1e-4)
    assert np.allclose(found["top_scores"], np.sort(softmax(wanted))[:, ::-1][:, :5], atol=1e-5)
    assert spec.preprocess.size == (SIZE, SIZE)


def test_a_softmax_of_the_files_own_is_not_applied_twice(tmp_path):
    tail = [
        helper.make_node("Softmax", ["logits"], ["p"], axis=-1),
        helper.make_node("Reshape", ["p", "shape"], ["q"]),
        helper.make_node("Identity", ["q"], ["probabilities"]),
    ]
    source = network(
        tmp_path / "plain.onnx",
        tail=tail,
        inits={"shape": np.array([-1, 6])}.items(),
        outputs=[output("probabilities", TensorProto.FLOAT, ["batch", 6])],
    )
    run, _, _ = export(source, tmp_path / "out.onnx")
    wanted = logits_of(PICTURES, MEAN, STD)
    assert np.allclose(run(PICTURES)["top_scores"], np.sort(softmax(wanted))[:, ::-1][:, :5], atol=1e-5)
    assert np.allclose(run(PICTURES)["logits"], wanted, atol=1e-4)
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node].count("Softmax") == 1


def test_sigmoids_are_no_classes_but_what_they_read_may_be(tmp_path):
    tail = [helper.make_node("Sigmoid", ["logits"], ["s"])]
    source = network(tmp_path / "plain.onnx", tail=tail, outputs=[output("s", TensorProto.FLOAT, ["batch", 6])])
    assert "--output logits" in refused(source, tmp_path)
    run, _, _ = export(source, tmp_path / "out.onnx", output="logits")
    assert np.allclose(run(PICTURES)["logits"], logits_of(PICTURES, MEAN, STD), atol=1e-4)


@pytest.mark.parametrize("own_softmax", [False, True])
def test_background_columns_are_dropped_before_the_softmax(tmp_path, own_softmax):
    tail = [helper.make_node("Softmax", ["logits"], ["p"], axis=-1)] if own_softmax else []
    name = "p" if own_softmax else "logits"
    source = network(tmp_path / "plain.onnx", tail=tail, outputs=[output(name, TensorProto.FLOAT, ["batch", 6])])
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\ne\n")
    run, spec, _ = export(source, tmp_path / "out.onnx", label_offset=1, classes=tmp_path / "names.txt")
    wanted = softmax(logits_of(PICTURES, MEAN, STD)[:, 1:])
    found = run(PICTURES)
    assert (found["top_labels"][:, 0] == wanted.argmax(axis=1)).all()
    assert np.allclose(found["top_scores"][:, 0], wanted.max(axis=1), atol=1e-5)
    assert spec.classes == ("a", "b", "c", "d", "e")
    assert "first 1 of its classes dropped" in spec.source


def test_a_class_file_of_another_length_is_refused(tmp_path):
    (tmp_path / "names.txt").write_text("a\nb\n")
    message = refused(network(tmp_path / "plain.onnx"), tmp_path, classes=tmp_path / "names.txt")
    assert "has 2 lines, the model has 6 classes" in message


def test_an_inner_tensor_can_be_the_embedding(tmp_path):
    source = network(tmp_path / "plain.onnx")
    run, spec, _ = export(source, tmp_path / "out.onnx", Task.EMBED, output="pooled", normalize=True)
    found = run(PICTURES)
    assert found["embedding"].shape == (8, 4)
    assert np.allclose(np.linalg.norm(found["embedding"], axis=1), 1, atol=1e-5)
    assert spec.normalize
    ops = {node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node}
    assert "MatMul" not in ops


def test_a_zero_embedding_becomes_nan_and_not_a_direction(tmp_path):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 3, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 3, 1, 1])
    graph = helper.make_graph([helper.make_node("GlobalAveragePool", ["x"], ["y"])], "g", [x], [y])
    for opset in (17, 18):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        onnx.save(model, tmp_path / "mean.onnx")
        run, _, _ = export(
            tmp_path / "mean.onnx", tmp_path / "o.onnx", Task.EMBED, (0, 0, 0), (1, 1, 1), normalize=True
        )
        black_and_red = np.zeros((2, 4, 4, 3), dtype=np.uint8)
        black_and_red[1, ..., 0] = 200
        found = run(black_and_red)["embedding"]
        assert np.isnan(found[0]).all()
        assert np.allclose(found[1], [1, 0, 0])


@pytest.mark.parametrize("batch", [1, 2])
def test_a_fixed_batch_is_made_dynamic_and_said(tmp_path, batch):
    tail = [helper.make_node("Reshape", ["logits", "shape"], ["r"])]
    source = network(
        tmp_path / "plain.onnx",
        batch=batch,
        tail=tail,
        inits={"shape": np.array([batch, 6])}.items(),
        outputs=[output("r", TensorProto.FLOAT, [batch, 6])],
    )
    run, _, lines = export(source, tmp_path / "out.onnx")
    assert any(f"batch fixed at {batch}" in line for line in lines)
    assert np.allclose(run(PICTURES)["logits"], logits_of(PICTURES, MEAN, STD), atol=1e-4)
    assert onnx.load(tmp_path / "out.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"


def test_a_batch_baked_into_the_graph_is_refused(tmp_path):
    """The batch is symbolic in the file, the graph takes two pictures alone."""
    tail = [helper.make_node("Add", ["logits", "bias"], ["r"])]
    source = network(
        tmp_path / "plain.onnx",
        tail=[helper.make_node("Reshape", ["logits", "shape"], ["flat2"]), tail[0]],
        inits={"shape": np.array([2, 6]), "bias": np.zeros((2, 6), np.float32)}.items(),
        outputs=[output("r", TensorProto.FLOAT, ["batch", 6])],
    )
    model = onnx.load(source)
    model.graph.node[-1].input[0] = "flat2"
    onnx.save(model, source)
    assert "batch is fixed at 2" in refused(source, tmp_path)


def test_a_fixed_batch_that_cannot_be_freed_is_refused(tmp_path):
    """Declared as 2, and summed with a constant of two rows."""
    source = network(
        tmp_path / "plain.onnx",
        batch=2,
        tail=[helper.make_node("Concat", ["logits", "more"], ["r"], axis=1)],
        inits={"more": np.ones((2, 1), np.float32)}.items(),
        outputs=[output("r", TensorProto.FLOAT, [2, 7])],
    )
    assert "batch is fixed at 2" in refused(source, tmp_path)


def segmenter(path, classes, *, argmax, nhwc=False, keepdims=0, cast=None):
    weight = np.random.default_rng(0).normal(0, 1, (classes, 3, 1, 1)).astype(np.float32)
    shape = ["b", 6, 8, 3] if nhwc else ["b", 3, 6, 8]
    nodes = [helper.make_node("Conv", ["planes" if nhwc else "x", "w"], ["maps"])]
    last, kind = "maps", TensorProto.FLOAT
    if nhwc:
        nodes.insert(0, helper.make_node("Transpose", ["x"], ["planes"], perm=[0, 3, 1, 2]))
        nodes.append(helper.make_node("Transpose", ["maps"], ["maps_last"], perm=[0, 2, 3, 1]))
        last = "maps_last"
    if argmax:
        axis = -1 if nhwc else 1
        nodes.append(helper.make_node("ArgMax", [last], ["ids"], axis=axis, keepdims=keepdims))
        last, kind = "ids", TensorProto.INT64
    if cast:
        nodes.append(helper.make_node("Cast", [last], ["cast"], to=cast))
        last, kind = "cast", cast
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info(last, kind, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [onnx.numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("argmax", [False, True])
@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_segmenters_of_every_shape_give_uint8_masks(tmp_path, argmax, nhwc, keepdims):
    source = segmenter(tmp_path / "s.onnx", 5, argmax=argmax, nhwc=nhwc, keepdims=keepdims)
    run, spec, _ = export(source, tmp_path / "o.onnx", Task.SEGMENT, mode=ResizeMode.SQUASH)
    pictures = trial_pictures((6, 8))
    weight = np.random.default_rng(0).normal(0, 1, (5, 3)).astype(np.float32)
    wanted = (((pictures / 255.0 - MEAN) / STD) @ weight.T).argmax(axis=-1)
    mask = run(pictures)["mask"]
    assert mask.dtype == np.uint8
    assert mask.shape == (8, 6, 8)
    assert (mask == wanted).mean() > 0.999
    assert spec.raw_output == "logits"


def test_class_ids_that_come_without_logits_are_cast(tmp_path):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 3, 6, 6])
    y = helper.make_tensor_value_info("ids", TensorProto.INT64, ["b", 1, 6, 6])
    nodes = [
        helper.make_node("Slice", ["x", "from", "to", "axis"], ["red"]),
        helper.make_node("Cast", ["red"], ["ids"], to=TensorProto.INT64),
    ]
    constants = {"from": [0], "to": [1], "axis": [1]}
    tensors = [onnx.numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "s.onnx")
    tenth = (10 / 255,) * 3
    run, spec, _ = export(tmp_path / "s.onnx", tmp_path / "o.onnx", Task.SEGMENT, (0, 0, 0), tenth)
    pictures = trial_pictures((6, 6))
    assert (run(pictures)["mask"] == pictures[..., 0] // 10).mean() > 0.95
    assert spec.raw_output == "mask_raw"
    message = refused(tmp_path / "s.onnx", tmp_path, task=Task.SEGMENT, mean=(0, 0, 0), std=(0.1 / 255,) * 3)
    assert "masks are uint8" in message


@pytest.mark.parametrize("argmax", [False, True])
def test_300_classes_do_not_fit_a_mask(tmp_path, argmax):
    source = segmenter(tmp_path / "s.onnx", 300, argmax=argmax)
    assert "300 classes" in refused(source, tmp_path, task=Task.SEGMENT, mode=ResizeMode.SQUASH)


def test_an_old_opset_is_converted(tmp_path):
    source = network(tmp_path / "old.onnx", opset=11, tail=[helper.make_node("Softmax", ["logits"], ["p"], axis=1)])
    run, _, _ = export(source, tmp_path / "out.onnx")
    assert np.allclose(run(PICTURES)["logits"], logits_of(PICTURES, MEAN, STD), atol=1e-4)
    assert onnx.load(tmp_path / "out.onnx").opset_import[0].version == 17


def test_external_data_is_found_beside_the_file_from_any_folder(tmp_path, monkeypatch):
    source = network(tmp_path / "plain.onnx")
    folder = tmp_path / "models"
    folder.mkdir()
    onnx.save(onnx.load(source), folder / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    run, _, _ = export("../models/m.onnx", elsewhere / "out.onnx")
    assert np.allclose(run(PICTURES)["logits"], logits_of(PICTURES, MEAN, STD), atol=1e-4)
    assert [path.name for path in elsewhere.iterdir()] == ["out.onnx"]
    (folder / "m.bin").unlink()
    assert "m.bin" in refused(folder / "m.onnx", tmp_path)


def test_tensors_that_bear_vdalis_names_are_moved_aside(tmp_path):
    """Input ``images``, inner tensors ``embedding`` and ``mask``: names that files of others often use."""
    source = network(tmp_path / "plain.onnx")
    model = onnx.load(source)
    names = {"x": "images", "c": "mask", "pooled": "embedding", "flat": "top_scores"}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    model.graph.input[0].name = "images"
    onnx.save(model, source)
    run, _, _ = export(source, tmp_path / "out.onnx")
    assert np.allclose(run(PICTURES)["logits"], logits_of(PICTURES, MEAN, STD), atol=1e-4)
    run, _, _ = export(source, tmp_path / "out.onnx", Task.EMBED, output="embedding")
    assert set(run(PICTURES)) == {"embedding"}


def test_what_a_plain_file_does_not_say_must_be_said(tmp_path):
    source = network(tmp_path / "plain.onnx")
    with pytest.raises(UsageError, match="--task classify, embed or segment"):
        export_model(str(source), tmp_path / "o.onnx")
    with pytest.raises(UsageError, match="--mean and --std"):
        export_model(str(source), tmp_path / "o.onnx", ExportOptions(task=Task.CLASSIFY))
    assert "Leave it out" in refused(source, tmp_path, UsageError, crop=(9, 9))
    open_size = network(tmp_path / "open.onnx", size=("h", "w"))
    assert "--crop" in refused(open_size, tmp_path, UsageError)
    run, spec, _ = export(open_size, tmp_path / "out.onnx", crop=(SIZE, SIZE), resize=(10, 10))
    assert spec.preprocess.resize == (10, 10)
    assert np.allclose(run(PICTURES)["logits"], logits_of(PICTURES, MEAN, STD), atol=1e-4)
    wide = network(tmp_path / "wide.onnx", size=(8, 12))
    assert "--mode squash" in refused(wide, tmp_path, UsageError)


def test_several_outputs_need_a_choice(tmp_path):
    outputs = [output("flat", TensorProto.FLOAT, ["b", 4]), output("logits", TensorProto.FLOAT, ["b", 6])]
    source = network(tmp_path / "plain.onnx", outputs=outputs)
    assert "2 outputs: flat, logits" in refused(source, tmp_path, UsageError)
    assert "no tensor 'nonesuch'" in refused(source, tmp_path, UsageError, output="nonesuch")


def test_files_that_are_no_picture_networks_are_refused(tmp_path):
    (tmp_path / "text.onnx").write_text("not an ONNX file")
    assert "Cannot read" in refused(tmp_path / "text.onnx", tmp_path)
    assert "Cannot read" in refused(tmp_path / "gone.onnx", tmp_path)
    assert "is a vdali model already" in refused(tiny_classifier(tmp_path / "vdali.onnx"), tmp_path)
    grey = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 1, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 1, 8, 8])],
    )
    onnx.save(
        helper.make_model(grey, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "grey.onnx"
    )
    assert "3 channels" in refused(tmp_path / "grey.onnx", tmp_path)
    source = network(tmp_path / "plain.onnx")
    assert "one vector for each picture" in refused(source, tmp_path, task=Task.EMBED, output="features")
    assert "per-pixel logits" in refused(source, tmp_path, task=Task.SEGMENT)


def test_a_random_network_is_refused(tmp_path):
    tail = [
        helper.make_node("RandomNormalLike", ["logits"], ["noise"]),
        helper.make_node("Add", ["logits", "noise"], ["z"]),
    ]
    source = network(tmp_path / "plain.onnx", tail=tail, outputs=[output("z", TensorProto.FLOAT, ["b", 6])])
    assert "the second time" in refused(source, tmp_path)


def test_the_file_says_what_was_exported(tmp_path):
    source = network(tmp_path / "plain.onnx")
    _, spec, _ = export(source, tmp_path / "out.onnx")
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)
    (entry,) = onnx.load(tmp_path / "out.onnx").metadata_props
    assert entry.key == METADATA_KEY
    assert ModelSpec.loads(entry.value, file="out.onnx") == spec


def test_mobilenet_v2_as_classifier_and_embedder(tmp_path, shared_data):
    source = shared_data / "models" / "mobilenet_v2_1.0_224.fp32.onnx"
    common = {"mean": CORAL, "std": CORAL, "resize": (256, 256)}
    run, spec, _ = export(source, tmp_path / "c.onnx", output="logits", label_offset=1, **common)
    photos = sorted((shared_data / "photos").glob("*/*"))[:16]
    pixels = np.stack([cropped(photo, 256, 224) for photo in photos])
    found = run(pixels)
    assert found["logits"].shape == (16, 1000)
    hits = found["top_labels"][:, 0] == [int(photo.parent.name) for photo in photos]
    assert hits.mean() > 0.5
    run, spec, _ = export(source, tmp_path / "e.onnx", Task.EMBED, output="embedding", normalize=True, **common)
    assert run(pixels[:2])["embedding"].shape == (2, 1280)
    assert spec.preprocess.resize == (256, 256)


def test_mobilenet_v1_drops_its_background_class(tmp_path, shared_data):
    source = shared_data / "models" / "mobilenet_v1_0.25_128.fp32.onnx"
    run, _, _ = export(source, tmp_path / "c.onnx", mean=CORAL, std=CORAL, resize=(146, 146), label_offset=1)
    photos = sorted((shared_data / "photos").glob("*/*"))
    pixels = np.stack([cropped(photo, 146, 128) for photo in photos])
    hits = run(pixels)["top_labels"] == np.array([[int(photo.parent.name)] for photo in photos])
    assert hits.any(axis=1).mean() > 0.4


def test_deeplab_finds_the_bird(tmp_path, shared_data):
    source = shared_data / "models" / "deeplabv3_mnv2_dm05_pascal.fp32.onnx"
    run, _, _ = export(source, tmp_path / "s.onnx", Task.SEGMENT, CORAL, CORAL, mode=ResizeMode.SQUASH)
    picture = Image.open(shared_data / "masks" / "bird_segmentation.bmp").convert("RGB")
    truth = np.asarray(Image.open(shared_data / "masks" / "bird_segmentation_mask.bmp"))
    squashed = np.asarray(picture.resize((513, 513), Image.Resampling.BILINEAR))[None]
    mask = Image.fromarray(run(squashed)["mask"][0]).resize(truth.shape[::-1], Image.Resampling.NEAREST)
    bird, wanted, counted = np.asarray(mask) == 3, truth == 3, truth != 255
    assert (bird & wanted & counted).sum() / ((bird | wanted) & counted).sum() > 0.8


def cropped(photo, resize, crop):
    picture = Image.open(photo).convert("RGB")
    scale = resize / min(picture.size)
    width, height = (max(resize, int(side * scale)) for side in picture.size)
    left, top = (width - crop) // 2, (height - crop) // 2
    return np.asarray(
        picture.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + crop, top + crop))
    )
