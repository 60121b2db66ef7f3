from __future__ import annotations

import numpy as np
import onnx
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from vdali.engine.errors import ModelError, UsageError
from vdali.engine.preprocess import Interpolation, Preprocess, ResizeMode, geometry_of
from vdali.engine.spec import Task
from vdali.export.model import export_model
from vdali.export.options import RANDOM, ExportOptions
from vdali.export.session import open_session
from vdali.export.timm_models import _preprocess, load_timm


def stated(name, **options):
    return load_timm(name, ExportOptions(weights=RANDOM, **options))


def prepared(picture, spec: Preprocess):
    """The spec in Pillow: what the pixels handed to the graph are."""
    place = geometry_of(spec, *picture.size)
    filters = {Interpolation.BILINEAR: Image.Resampling.BILINEAR, Interpolation.BICUBIC: Image.Resampling.BICUBIC}
    resized = picture.resize((place.resized_width, place.resized_height), filters[spec.interpolation])
    canvas = Image.new("RGB", (place.width, place.height), spec.fill)
    canvas.paste(resized, (-place.left, -place.top))
    return np.asarray(canvas)


@pytest.mark.parametrize(
    "name",
    [
        "mobilenetv3_small_100",  # bicubic, 0.875
        "resnet18.a1_in1k",  # 0.95
        "vit_tiny_patch16_224",  # mean 0.5
        "convnext_atto",
        "efficientvit_m0",
        "test_vit",  # 160 pixels
    ],
)
def test_the_spec_gives_timms_own_pixels(name):
    config = timm.get_pretrained_cfg(name).to_dict()
    spec = _preprocess(config, name, None)
    transform = create_transform(**resolve_data_config(pretrained_cfg=config), is_training=False)
    random = np.random.default_rng(0)
    for width, height in [(640, 427), (300, 301), (225, 901), (90, 60)]:
        picture = Image.fromarray(random.integers(0, 256, (height // 9 + 1, width // 9 + 1, 3), dtype=np.uint8))
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
        wanted = transform(picture)
        mean, std = (torch.tensor(levels).view(3, 1, 1) for levels in (spec.mean, spec.std))
        pixels = (wanted * std + mean).mul(255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        assert np.array_equal(prepared(picture, spec), pixels), (width, height)


@pytest.mark.parametrize(("mode", "known"), [("squash", ResizeMode.SQUASH), ("border", ResizeMode.LONGEST)])
def test_timms_other_crop_modes_are_told_apart(mode, known):
    config = {**timm.get_pretrained_cfg("resnet18").to_dict(), "crop_mode": mode, "crop_pct": 0.9}
    spec = _preprocess(config, "resnet18", None)
    assert spec.mode is known
    assert spec.resize == (248, 248)
    assert spec.fill == ((124, 116, 104) if known is ResizeMode.LONGEST else (0, 0, 0))
    transform = create_transform(**resolve_data_config(pretrained_cfg=config), is_training=False)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 45, 3), dtype=np.uint8)).resize((450, 300))
    mean, std = (torch.tensor(levels).view(3, 1, 1) for levels in (spec.mean, spec.std))
    pixels = (transform(picture) * std + mean).mul(255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    assert np.array_equal(prepared(picture, spec), pixels)


def test_what_cannot_be_said_in_a_spec_is_refused():
    config = timm.get_pretrained_cfg("resnet18").to_dict()
    with pytest.raises(ModelError, match="nearest"):
        _preprocess({**config, "interpolation": "nearest"}, "resnet18", None)
    with pytest.raises(ModelError, match="--mode squash"):
        _preprocess({**config, "input_size": (3, 160, 224)}, "resnet18", None)


def test_task_names_and_weights_are_stated():
    model = stated("mobilenetv3_small_100", seed=4)
    assert model.task is Task.CLASSIFY
    assert model.weights == "random (seed 4)"
    assert model.classes[281] == "tabby"
    assert "timm 1." in model.source
    assert stated("test_vit", task=Task.EMBED).classes is None
    with pytest.raises(UsageError, match="segment"):
        stated("test_vit", task=Task.SEGMENT)


def test_a_name_that_timm_does_not_know_brings_near_ones():
    with pytest.raises(ModelError, match="mobilenetv3_small_100"):
        stated("mobilenetv3_smal")


def test_a_vision_transformer_at_another_size_gets_its_embeddings_resized():
    module = stated("test_vit", crop=(192, 192)).module
    assert module(torch.zeros(1, 3, 192, 192)).shape == (1, 1000)
    assert stated("test_vit", crop=(192, 192)).preprocess.size == (192, 192)


def test_weights_of_a_file_decide_the_number_of_classes(tmp_path):
    torch.manual_seed(1)
    source = timm.create_model("test_vit", num_classes=12)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    model = load_timm("test_vit", ExportOptions(weights=str(tmp_path / "w.pth")))
    assert model.module.num_classes == 12
    assert model.classes is None
    pictures = torch.rand(2, 3, 160, 160)
    with torch.inference_mode():
        assert torch.equal(model.module.eval()(pictures), source.eval()(pictures))
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "other.pth")
    with pytest.raises(ModelError, match="do not fit timm/test_vit"):
        load_timm("test_vit", ExportOptions(weights=str(tmp_path / "other.pth")))


def test_without_a_network_the_way_out_is_named(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"huggingface\.co.*--weights FILE.*--weights random"):
        load_timm("mobilenetv3_small_100", ExportOptions())


def exported(tmp_path, name, **options):
    lines = []
    path = tmp_path / "m.onnx"
    spec = export_model(f"timm/{name}", path, ExportOptions(weights=RANDOM, **options), lines.append)
    return path, spec, lines


def test_a_small_network_becomes_an_embedder(tmp_path):
    path, spec, _ = exported(tmp_path, "mobilenetv3_small_100", task=Task.EMBED)
    assert spec.preprocess == Preprocess(size=(224, 224), resize=(256, 256), interpolation=Interpolation.BICUBIC)
    run = open_session(path)
    assert run(np.zeros((1, 224, 224, 3), dtype=np.uint8))["embedding"].shape == (1, 1024)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds[:4] == ["Cast", "Transpose", "Sub", "Conv"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_small_patch16_224", {}),
        ("vit_small_patch14_dinov2", {"crop": (224, 224)}),
        ("resnet50", {}),
        ("maxvit_nano_rw_256", {}),
    ],
)
def test_networks_of_every_kind_export_and_agree(tmp_path, name, options):
    path, spec, lines = exported(tmp_path, name, **options)
    assert "Verified" in lines[-1]
    assert "Resize" not in {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
    assert spec.preprocess.size[0] in (224, 256)
