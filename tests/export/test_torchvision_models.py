from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import models
from vdali.engine.errors import ModelError
from vdali.engine.preprocess import Interpolation, ResizeMode, geometry_of
from vdali.engine.spec import Task
from vdali.export.model import export_model
from vdali.export.options import RANDOM, ExportOptions
from vdali.export.session import open_session
from vdali.export.torchvision_models import _preprocess, imagenet_names, load_torchvision

SMALL = "squeezenet1_1"


def stated(name, **options):
    return load_torchvision(name, ExportOptions(weights=RANDOM, **options))


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "efficientnet_b3", "swin_v2_t"])
def test_the_spec_gives_the_presets_own_pixels(name):
    preset = models.get_model_weights(name).DEFAULT.transforms()
    spec = _preprocess(preset, Task.CLASSIFY)
    random = np.random.default_rng(0)
    for size in [(640, 427), (300, 301), (225, 901)]:
        picture = Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8)).resize(size)
        place = geometry_of(spec, *size)
        kinds = {Interpolation.BILINEAR: Image.Resampling.BILINEAR, Interpolation.BICUBIC: Image.Resampling.BICUBIC}
        resized = picture.resize((place.resized_width, place.resized_height), kinds[spec.interpolation])
        box = (place.left, place.top, place.left + place.width, place.top + place.height)
        mean, std = (torch.tensor(levels).view(3, 1, 1) for levels in (spec.mean, spec.std))
        pixels = (preset(picture) * std + mean).mul(255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        assert np.array_equal(np.asarray(resized.crop(box)), pixels), size


def test_imagenet_names_are_in_order():
    names = imagenet_names()
    assert len(names) == 1000
    assert (names[0], names[281], names[999]) == ("tench", "tabby", "toilet tissue")


def test_a_segmenter_squashes_to_its_size_and_knows_its_classes():
    model = stated("deeplabv3_mobilenet_v3_large")
    assert model.task is Task.SEGMENT
    assert model.preprocess.mode is ResizeMode.SQUASH
    assert model.preprocess.size == (520, 520)
    assert model.classes[3] == "bird"
    assert model.output == "out"


@pytest.mark.parametrize(("name", "width"), [("resnet18", 512), ("mobilenet_v3_small", 1024)])
def test_what_the_last_linear_layer_reads_is_the_embedding(name, width):
    module = stated(name, task=Task.EMBED).module.eval()
    with torch.inference_mode():
        assert module(torch.zeros(1, 3, 224, 224)).shape == (1, width)


def test_what_a_model_cannot_do_is_said():
    with pytest.raises(ModelError, match="made to segment; it cannot classify"):
        stated("lraspp_mobilenet_v3_large", task=Task.CLASSIFY)
    with pytest.raises(ModelError, match="no linear classifier"):
        stated(SMALL, task=Task.EMBED)
    with pytest.raises(ModelError, match="ObjectDetection"):
        stated("retinanet_resnet50_fpn")
    with pytest.raises(ModelError, match=r"no model 'resnet19'.*resnet18"):
        stated("resnet19")


@pytest.mark.parametrize("name", [SMALL, "lraspp_mobilenet_v3_large"])
def test_weights_of_a_file_are_used(tmp_path, name):
    source = stated(name, seed=5).module.eval()
    torch.save(source.state_dict(), tmp_path / "w.pth")
    model = load_torchvision(name, ExportOptions(weights=str(tmp_path / "w.pth")))
    assert model.weights == "w.pth"
    picture = torch.rand(1, 3, 96, 96)
    with torch.inference_mode():
        found, wanted = model.module.eval()(picture), source(picture)
    pick = (lambda value: value["out"]) if isinstance(found, dict) else (lambda value: value)
    assert torch.equal(pick(found), pick(wanted))


def test_without_a_network_the_way_out_is_named(monkeypatch):
    def unreachable(*arguments, **options):
        raise OSError("Name or service not known")

    monkeypatch.setattr(models.get_model_weights(SMALL).DEFAULT.__class__, "get_state_dict", unreachable)
    with pytest.raises(ModelError, match=r"download\.pytorch\.org.*--weights FILE.*--weights random"):
        load_torchvision(SMALL, ExportOptions())


def test_a_classifier_exports_with_names(tmp_path):
    spec = export_model(f"torchvision/{SMALL}", tmp_path / "m.onnx", ExportOptions(weights=RANDOM))
    assert spec.classes[281] == "tabby"
    assert spec.weights == "random (seed 0)"
    found = open_session(tmp_path / "m.onnx")(np.zeros((2, 224, 224, 3), dtype=np.uint8))
    assert found["top_labels"].shape == (2, 5)


@pytest.mark.slow
def test_a_segmenter_exports(tmp_path):
    spec = export_model(
        "torchvision/deeplabv3_mobilenet_v3_large", tmp_path / "m.onnx", ExportOptions(weights=RANDOM, crop=(260, 260))
    )
    assert spec.preprocess.resize == (260, 260)
    found = open_session(tmp_path / "m.onnx")(np.zeros((2, 260, 260, 3), dtype=np.uint8))
    assert found["mask"].shape == (2, 260, 260)


@pytest.mark.slow
def test_resnet50_exports(tmp_path):
    spec = export_model("torchvision/resnet50", tmp_path / "m.onnx", ExportOptions(weights=RANDOM))
    assert spec.preprocess.resize == (232, 232)
