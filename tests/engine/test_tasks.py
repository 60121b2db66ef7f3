"""Outputs to columns, unusable outputs to failures, masks back to the source's size."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageDraw
from vdali.engine.batch import Decoded
from vdali.engine.errors import ModelError
from vdali.engine.preprocess import PadPosition, Preprocess, ResizeMode, geometry_of
from vdali.engine.spec import ModelSpec, Precision, Task
from vdali.engine.tasks import UNSEEN, mask_at_source, png_from_mask, rows_from_outputs

SQUASH = Preprocess(size=(64, 64), resize=(64, 64), mode=ResizeMode.SQUASH)


def spec_for(task: Task, preprocess: Preprocess = SQUASH, **values) -> ModelSpec:
    return ModelSpec(name="toy", task=task, preprocess=preprocess, **values)


def decoded_for(count: int) -> list[Decoded]:
    return [Decoded(f"{i}.jpg", 10 + i, 20 + i, "turbo", salvaged=i == 1) for i in range(count)]


def classify_outputs() -> dict[str, np.ndarray]:
    return {
        "top_scores": np.array([[0.9, 0.1], [0.6, 0.4], [0.5, 0.3]], np.float32),
        "top_labels": np.array([[2, 0], [1, 2], [7, 1]], np.int64),
    }


def test_classify_gives_best_label_name_and_top_lists():
    outcome = rows_from_outputs(spec_for(Task.CLASSIFY, classes=("a", "b", "c")), decoded_for(3), classify_outputs())
    columns = outcome.rows.columns
    assert outcome.rows.ids == ["0.jpg", "1.jpg", "2.jpg"]
    assert columns["label"].tolist() == [2, 1, 7]
    assert columns["name"] == ["c", "b", None]
    assert columns["score"].tolist() == pytest.approx([0.9, 0.6, 0.5])
    assert columns["salvaged"].tolist() == [False, True, False]
    assert {name: columns[name].dtype for name in ("label", "score", "top_labels", "top_scores")} == {
        "label": np.int32,
        "score": np.float32,
        "top_labels": np.int32,
        "top_scores": np.float32,
    }
    assert not outcome.failures


def test_without_class_names_there_is_no_name_column():
    columns = rows_from_outputs(spec_for(Task.CLASSIFY), decoded_for(3), classify_outputs()).rows.columns
    assert "name" not in columns


@pytest.mark.parametrize("task", list(Task))
def test_columns_do_not_alias_the_buffers_of_the_engine(task):
    outputs = {
        Task.CLASSIFY: classify_outputs(),
        Task.EMBED: {"embedding": np.ones((3, 4), np.float32)},
        Task.SEGMENT: {"mask": np.ones((3, 64, 64), np.uint8)},
    }[task]
    columns = rows_from_outputs(spec_for(task), decoded_for(3), outputs).rows.columns
    for column in columns.values():
        assert not any(
            np.shares_memory(column, output) for output in outputs.values() if isinstance(column, np.ndarray)
        )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_output_fails_its_own_sample_only(bad):
    embedding = np.arange(12, dtype=np.float32).reshape(3, 4)
    embedding[1, 2] = bad
    outcome = rows_from_outputs(
        spec_for(Task.EMBED, precision=Precision.FP16, normalize=True), decoded_for(3), {"embedding": embedding}
    )
    assert outcome.rows.ids == ["0.jpg", "2.jpg"]
    assert outcome.rows.columns["embedding"].tolist() == embedding[[0, 2]].tolist()
    (failure,) = outcome.failures
    assert (failure.id, failure.stage, failure.kind, failure.retryable) == ("1.jpg", "infer", "non_finite", False)
    assert "'embedding' has 1 of 4" in failure.message
    assert "fp16" in failure.message
    assert "norm zero" in failure.message


def test_two_samples_of_one_id_are_judged_apart():
    scores = classify_outputs()
    scores["top_scores"][0, 0] = np.nan
    twins = [Decoded("same.jpg", 5, 5, "turbo")] * 3
    outcome = rows_from_outputs(spec_for(Task.CLASSIFY), twins, scores)
    assert len(outcome.rows) == 2
    assert len(outcome.failures) == 1


def test_an_all_zero_vector_is_a_failure_only_where_it_was_to_be_normalised():
    outputs = {"embedding": np.array([[0, 0], [3, 4]], np.float32)}
    plain = rows_from_outputs(spec_for(Task.EMBED), decoded_for(2), outputs)
    normalised = rows_from_outputs(spec_for(Task.EMBED, normalize=True), decoded_for(2), outputs)
    assert len(plain.rows) == 2
    assert normalised.rows.ids == ["1.jpg"]
    assert normalised.failures[0].kind == "zero_norm"


@pytest.mark.parametrize("shape", [(1, 4), (4, 4), (3, 4, 1), (3,)])
def test_outputs_that_cannot_be_matched_to_samples_make_all_of_them_failures(shape):
    outcome = rows_from_outputs(spec_for(Task.EMBED), decoded_for(3), {"embedding": np.ones(shape, np.float32)})
    assert len(outcome.rows) == 0
    assert [failure.id for failure in outcome.failures] == ["0.jpg", "1.jpg", "2.jpg"]
    assert {failure.kind for failure in outcome.failures} == {"output_shape"}
    assert str(list(shape)) in outcome.failures[0].message


def test_a_missing_output_says_which_and_what_there_is():
    with pytest.raises(ModelError, match=r"no output 'embedding'.*gives logits"):
        rows_from_outputs(spec_for(Task.EMBED), decoded_for(1), {"logits": np.ones((1, 4), np.float32)})


SPECS = {
    "squash": Preprocess(size=(192, 192), resize=(192, 192), mode=ResizeMode.SQUASH),
    "crop": Preprocess(size=(160, 160), resize=(182, 182)),
    "border": Preprocess(size=(224, 224), resize=(160, 160)),
    "pad centre": Preprocess(size=(192, 192), resize=(192, 192), mode=ResizeMode.LONGEST),
    "pad corner": Preprocess(size=(192, 192), resize=(192, 192), mode=ResizeMode.LONGEST, pad=PadPosition.CORNER),
}
SIZES = [(4000, 3000), (300, 500), (500, 300), (1201, 799), (200, 200), (640, 427)]


def disc(width: int, height: int) -> np.ndarray:
    """A disc off the centre of an upright picture, bool [height, width]."""
    image = Image.new("L", (width, height))
    radius = min(width, height) // 4
    x, y = width * 9 // 20, height * 11 // 20
    ImageDraw.Draw(image).ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    return np.asarray(image) > 0


def seen_by_model(preprocess: Preprocess, truth: np.ndarray) -> np.ndarray:
    """What a perfect segmenter says of the model's input: the picture resized, cropped and padded, uint8."""
    height, width = truth.shape
    geometry = geometry_of(preprocess, width, height)
    resized = Image.fromarray(truth.astype(np.uint8) * 255).resize(
        (geometry.resized_width, geometry.resized_height), Image.Resampling.BILINEAR
    )
    box = (geometry.left, geometry.top, geometry.left + geometry.width, geometry.top + geometry.height)
    return (np.asarray(resized.crop(box)) > 127).astype(np.uint8)


@pytest.mark.parametrize("name", SPECS)
def test_masks_of_a_mixed_folder_lie_on_their_own_picture(name):
    preprocess = SPECS[name]
    truths = [disc(width, height) for width, height in SIZES]
    masks = np.stack([seen_by_model(preprocess, truth) for truth in truths])
    decoded = [Decoded(f"{i}.jpg", width, height, "turbo") for i, (width, height) in enumerate(SIZES)]
    rows = rows_from_outputs(spec_for(Task.SEGMENT, preprocess), decoded, {"mask": masks}).rows
    assert rows.columns["width"].tolist() == [width for width, _ in SIZES]
    assert rows.columns["height"].tolist() == [height for _, height in SIZES]
    for truth, png in zip(truths, rows.columns["mask_png"], strict=True):
        image = Image.open(io.BytesIO(png))
        assert image.mode == "L"
        mask = np.asarray(image)
        assert mask.shape == truth.shape
        seen = mask != UNSEEN
        found = mask == 1
        assert (found & truth).sum() / (found | (truth & seen)).sum() >= 0.95
        if name not in {"crop", "border"}:
            assert seen.all()


def test_what_the_crop_cut_off_is_unseen_and_nothing_else():
    mask = mask_at_source(Preprocess(size=(50, 50), resize=(100, 100)), np.zeros((50, 50), np.uint8), 400, 200)
    expected = np.full((200, 400), UNSEEN, np.uint8)
    expected[50:150, 150:250] = 0
    assert np.array_equal(mask, expected)


@pytest.mark.parametrize("resolution", [(64, 64), (16, 16), (61, 33)])
def test_each_source_pixel_takes_the_mask_pixel_under_its_centre(resolution):
    random = np.random.default_rng(0)
    small = random.integers(0, 21, resolution).astype(np.uint8)
    mask = mask_at_source(SQUASH, small, 97, 203)
    for y, x in random.integers(0, (203, 97), (200, 2)):
        assert mask[y, x] == small[int((y + 0.5) / 203 * resolution[0]), int((x + 0.5) / 97 * resolution[1])]


def test_a_mask_of_48_megapixels_needs_little_more_than_itself():
    code = """
import numpy as np
from vdali.engine.preprocess import Preprocess
from vdali.engine.tasks import mask_at_source, png_from_mask
spec = Preprocess(size=(513, 513), resize=(513, 513), mode="squash")
mask = np.random.default_rng(0).integers(0, 21, (513, 513)).astype(np.uint8)
png_from_mask(mask_at_source(spec, mask, 20, 10))
def peak_kb():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
before = peak_kb()
for _ in range(3):
    png_from_mask(mask_at_source(spec, mask, 8000, 6000))
print(peak_kb() - before)
"""
    grown_kb = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    assert 40_000 < grown_kb < 150_000


def test_a_png_keeps_every_class_id():
    mask = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png_from_mask(mask)))), mask)
