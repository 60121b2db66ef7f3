"""The shared toy models do what their names say."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from vdali.engine.spec import ModelSpec

from tests.models import mean_colour_model, nan_colour_model, red_segmenter, tiny_classifier, with_spec


def run(path, pixels):
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(zip((o.name for o in session.get_outputs()), session.run(None, {"images": pixels}), strict=True))


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)


def test_the_mean_colour_model_gives_each_pictures_mean_in_rgb_order(tmp_path, pixels):
    embedding = run(mean_colour_model(tmp_path / "m.onnx"), pixels)["embedding"]
    assert np.allclose(embedding, pixels.mean(axis=(1, 2)), atol=1e-3)


def test_the_normalised_mean_colour_of_black_is_nan_and_of_others_has_norm_1(tmp_path, pixels):
    pixels[1] = 0
    embedding = run(mean_colour_model(tmp_path / "m.onnx", normalize=True), pixels)["embedding"]
    assert np.isnan(embedding[1]).all()
    assert np.allclose(np.linalg.norm(embedding[[0, 2]], axis=1), 1)


def test_the_nan_colour_model_gives_nan_for_that_colour_alone(tmp_path, pixels):
    pixels[2] = (10, 200, 30)
    embedding = run(nan_colour_model(tmp_path / "m.onnx", (11, 199, 30)), pixels)["embedding"]
    assert np.isnan(embedding).any(axis=1).tolist() == [False, False, True]


def test_the_tiny_classifier_gives_sorted_scores_and_the_same_labels_each_time(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    first = run(tiny_classifier(tmp_path / "a.onnx"), pixels)
    again = run(tiny_classifier(tmp_path / "b.onnx"), pixels)
    assert first["top_scores"].shape == first["top_labels"].shape == (3, 5)
    assert (np.diff(first["top_scores"]) <= 0).all()
    assert (first["top_labels"] == again["top_labels"]).all()


def test_the_red_segmenter_marks_red_above_127(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    mask = run(red_segmenter(tmp_path / "m.onnx"), pixels)["mask"]
    assert mask.dtype == np.uint8
    assert (mask == (pixels[..., 0] > 127)).all()


def test_a_spec_can_be_changed_in_place(tmp_path):
    import onnx

    path = with_spec(mean_colour_model(tmp_path / "m.onnx"), name="other")
    (prop,) = onnx.load(path).metadata_props
    assert ModelSpec.loads(prop.value, file="m").name == "other"
