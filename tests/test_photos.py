"""The whole run on real photos with a trained model, and on every file that breaks decoders."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pyarrow.parquet as pq
import pytest
import vdali
from commands import record_of
from models import mean_colour_model
from onnx import helper, numpy_helper
from PIL import Image, ImageOps
from vdali.engine.preprocess import Preprocess
from vdali.engine.spec import METADATA_KEY, ModelSpec, Precision
from vdali.export.store import resolve_model

DECODERS = ("turbo", "dali", "pillow")
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TOO_LITTLE_TO_SALVAGE = "ultrahdr.jpg"
"""Broken off before a tenth of its pixels: a row would be mostly grey."""


@pytest.fixture(scope="module")
def trained() -> Path:
    return resolve_model("efficientnet_lite0", precision=Precision.FP32)


@pytest.fixture(scope="module")
def photos(shared_data) -> Path:
    return shared_data / "photos"


@pytest.fixture(scope="module")
def labelled(tmp_path_factory, trained, photos) -> dict[str, Path]:
    """OUT of a run over the photos, by decoder."""
    outs = {name: tmp_path_factory.mktemp("photos") / name for name in DECODERS}
    for name, out in outs.items():
        vdali.run(photos, model=trained, out=out, decoder=name)
    return outs


def rows_of(out: Path) -> dict[str, dict]:
    return {row["id"]: row for row in pq.read_table(out / "rows").to_pylist()}


def failures_of(out: Path) -> dict[str, dict]:
    return {row["id"]: row for row in pq.read_table(out / "failures").to_pylist()}


def hits(rows: dict[str, dict]) -> int:
    """Photos whose best label is the class index that their folder is named by."""
    return sum(row["label"] == int(sample_id.partition("/")[0]) for sample_id, row in rows.items())


def spec_of(model: Path) -> ModelSpec:
    entries = {entry.key: entry.value for entry in onnx.load(model).metadata_props}
    return ModelSpec.loads(entries[METADATA_KEY], file=str(model))


def plain_pixels(path: Path, spec: Preprocess) -> np.ndarray:
    """What most people would write: open, turn, shorter side to the resize, crop the middle."""
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    longer = int(spec.resize[0] * max(image.size) / min(image.size))
    size = (spec.resize[0], longer) if image.width <= image.height else (longer, spec.resize[0])
    image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = (round((have - want) / 2.0) for have, want in zip(image.size, spec.size[::-1], strict=True))
    return np.asarray(image.crop((left, top, left + spec.size[1], top + spec.size[0])))


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_photo_gets_a_row_and_most_the_right_label(labelled, photos, decoder):
    rows = rows_of(labelled[decoder])
    assert sorted(rows) == sorted(str(path.relative_to(photos)) for path in photos.rglob("*.jpg"))
    assert len(rows) == 47
    assert failures_of(labelled[decoder]) == {}
    assert hits(rows) >= 34


def test_with_the_pillow_decoder_labels_and_scores_are_those_of_a_plain_loop(labelled, photos, trained):
    spec = spec_of(trained)
    session = ort.InferenceSession(str(trained), providers=["CPUExecutionProvider"])
    for sample_id, row in rows_of(labelled["pillow"]).items():
        pixels = plain_pixels(photos / sample_id, spec.preprocess)
        scores, labels = session.run(["top_scores", "top_labels"], {"images": pixels[None]})
        assert row["label"] == labels[0, 0], sample_id
        assert row["name"] == spec.classes[labels[0, 0]]
        assert row["score"] == pytest.approx(scores[0, 0], abs=1e-4), sample_id
        assert np.abs(np.array(row["top_scores"]) - scores[0]).max() <= 1e-4
        assert (row["score"], row["label"]) == (row["top_scores"][0], row["top_labels"][0])


@pytest.mark.parametrize("decoder", ["turbo", "dali"])
def test_the_fast_decoders_give_the_labels_of_pillow_and_nearly_its_scores(labelled, decoder):
    rows, reference = rows_of(labelled[decoder]), rows_of(labelled["pillow"])
    for sample_id, expected in reference.items():
        assert rows[sample_id]["label"] == expected["label"], sample_id
        assert rows[sample_id]["score"] == pytest.approx(expected["score"], abs=0.02), sample_id


def test_run_json_names_the_decoder_that_really_decoded(labelled):
    for decoder, out in labelled.items():
        record = record_of(out)
        assert record["used"]["decoder"] == decoder
        assert record["sessions"][0]["decoded_by"][decoder] == 47
        assert record["used"]["engine"] == "onnxruntime:CPUExecutionProvider"


def test_the_preprocessing_of_another_model_loses_photos(tmp_path, labelled, trained, photos):
    """What these tests could not see would not be tested: the same weights behind ImageNet's mean and std."""
    model = onnx.load(trained)
    spec = spec_of(trained).preprocess
    mean, std = 255 * np.array(spec.mean), 255 * np.array(spec.std)
    scale = std / (255 * np.array(IMAGENET_STD))
    shift = mean - std * np.array(IMAGENET_MEAN) / np.array(IMAGENET_STD)
    cast = next(node for node in model.graph.node if "images" in node.input)
    assert cast.op_type == "Cast"
    right, cast.output[0] = cast.output[0], "levels"
    position = list(model.graph.node).index(cast) + 1
    model.graph.node.insert(position, helper.make_node("Mul", ["levels", "wrong_scale"], ["scaled"]))
    model.graph.node.insert(position + 1, helper.make_node("Add", ["scaled", "wrong_shift"], [right]))
    for name, values in (("wrong_scale", scale), ("wrong_shift", shift)):
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    onnx.save(model, tmp_path / "wrong.onnx")
    vdali.run(photos, model=tmp_path / "wrong.onnx", out=tmp_path / "out")
    assert hits(rows_of(tmp_path / "out")) <= hits(rows_of(labelled["turbo"])) - 3


@pytest.fixture(scope="module")
def awkward(shared_data) -> dict[str, dict[str, str]]:
    """Lines of the manifest by file."""
    with (shared_data / "awkward" / "manifest.csv").open(newline="") as file:
        return {line["file"]: line for line in csv.DictReader(file)}


@pytest.fixture(scope="module")
def colours(tmp_path_factory) -> Path:
    return mean_colour_model(tmp_path_factory.mktemp("model") / "m.onnx", size=(64, 64))


@pytest.fixture(scope="module", params=DECODERS)
def survived(request, tmp_path_factory, shared_data, colours) -> dict[str, Path]:
    """OUT of runs over the awkward files with one decoder, by what truncated pictures become."""
    outs = {word: tmp_path_factory.mktemp(request.param) / word for word in ("fail", "salvage")}
    for word, out in outs.items():
        vdali.run(shared_data / "awkward", model=colours, out=out, decoder=request.param, truncated=word)
    return outs


def assert_accounted_for(out: Path, awkward: dict[str, dict[str, str]]) -> None:
    """Each file ended once, and run.json counts what the parts hold."""
    rows, failures = rows_of(out), failures_of(out)
    assert len(rows) + len(failures) == len(awkward) == 64
    assert rows.keys() | failures.keys() == awkward.keys()
    counts = record_of(out)["counts"]
    assert (counts["inputs"], counts["rows"], counts["failures"]) == (64, len(rows), len(failures))
    assert counts["failures_by_kind"] == record_of(out)["sessions"][0]["failures_by_kind"]
    assert sum(counts["failures_by_kind"].values()) == len(failures)
    assert sum(record_of(out)["sessions"][0]["decoded_by"].values()) == len(rows)


def test_every_awkward_file_ends_as_its_manifest_says(survived, awkward):
    out = survived["fail"]
    assert_accounted_for(out, awkward)
    rows, failures = rows_of(out), failures_of(out)
    kinds = {sample_id: failure["kind"] for sample_id, failure in failures.items()}
    for name, line in awkward.items():
        expected = line["expected"]
        if expected in ("decode", "damaged: Pillow decodes, libjpeg warns"):
            assert name in rows, failures.get(name)
        elif expected == "bomb: reject by size limit":
            assert kinds[name] == "too_large"
        elif expected == "reject":
            assert kinds[name] in ("empty", "corrupt", "not_an_image"), name
        elif expected.startswith("damaged: Pillow rejects"):
            assert kinds[name] in ("truncated", "corrupt"), name
        else:
            assert expected == "special decoder needed"
            assert name in rows or kinds[name] == "unsupported", kinds[name]
    assert not any(row["salvaged"] for row in rows.values())
    assert all(failure["message"] and failure["stage"] == "decode" for failure in failures.values())


def test_rows_of_awkward_files_have_the_colours_that_the_manifest_states(survived, awkward):
    compared = 0
    for name, row in rows_of(survived["fail"]).items():
        line = awkward[name]
        if line["pillow_rgb_mean"] and line["mode"] != "I;16":  # those Pillow turns white
            stated = np.array([float(word) for word in line["pillow_rgb_mean"].split()])
            assert np.abs(np.array(row["embedding"]) - stated).max() <= 0.6, name
            compared += 1
    assert compared >= 45


def test_salvaged_rows_are_flagged_and_nothing_else_changes(survived, awkward):
    out = survived["salvage"]
    assert_accounted_for(out, awkward)
    rows, strict = rows_of(out), rows_of(survived["fail"])
    flagged = {sample_id for sample_id, row in rows.items() if row["salvaged"]}
    damaged = {name for name, line in awkward.items() if line["expected"].startswith("damaged: Pillow rejects")}
    assert flagged == damaged - {TOO_LITTLE_TO_SALVAGE}
    assert "too little to salvage" in failures_of(out)[TOO_LITTLE_TO_SALVAGE]["message"]
    assert rows.keys() - flagged == strict.keys()
    assert all(rows[name] == strict[name] for name in strict)
    assert record_of(out)["sessions"][0]["salvaged"] == len(flagged)
