"""Engines from the command line: made, judged, built, kept; and every bad input is one message with its status."""

from __future__ import annotations

import json
import os
from pathlib import Path

import onnx
import pytest
from models import mean_colour_model, tiny_classifier, with_spec
from onnx import TensorProto, helper
from precision_models import scaled
from vdali.engine.plans.flavour import find_flavour
from vdali.engine.spec import Precision
from vdali.export.agreement import _DEFAULTS, Limits


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def rtx() -> None:
    if find_flavour() != "tensorrt_rtx":
        pytest.skip("TensorRT-RTX does not build plans here: pip install 'vdali[rtx]'")


def test_engines_are_made_and_the_table_ends_what_is_printed(vdali, model, pictures) -> None:
    words = ("engines", "make", model, "--precisions", "fp32,fp16", "--images", pictures, "--flavour", "none")
    made = vdali(*words)
    assert made.status == 0
    head, *rows = made.out.splitlines()
    assert head.split()[:4] == ["model", "precision", "MiB", "agreement"]
    assert [row.split("built")[0].split()[2] for row in rows] == ["fp32", "fp16"]
    assert "no TensorRT flavour here" in rows[0]
    again = vdali(*words, "--json")
    assert [(row["precision"], row["status"]) for row in json.loads(again.out)] == [
        ("fp32", "cached"),
        ("fp16", "cached"),
    ]


def test_a_refused_engine_is_status_5_after_the_others_are_made(vdali, model, pictures, tmp_path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"weights go here")
    made = vdali(
        "engines", "make", "broken.onnx", model, "--precisions", "fp32", "--images", pictures, "--flavour", "none"
    )
    assert made.status == 5
    assert "1 of 2 engines were refused" in made.err
    assert "refused: " in made.out.splitlines()[1]
    assert "built" in made.out.splitlines()[2]


def test_a_precision_is_judged_and_a_doctored_file_is_refused_with_its_worst_picture(vdali, pictures, tmp_path) -> None:
    fp32, half = tiny_classifier(tmp_path / "fp32.onnx"), tmp_path / "half.onnx"
    assert vdali("export", fp32, "-p", "fp16", "--calibrate", pictures, "-o", half).status == 0
    good = vdali("validate", half, pictures, "-p", "fp16", "--reference", fp32, "--json")
    assert good.status == 0
    assert json.loads(good.out)["pictures"] == 29
    doctored = scaled(half, tmp_path / "x8.onnx", "weight/float16", -8.0)
    bad = vdali("validate", doctored, pictures, "-p", "fp16", "--reference", fp32)
    assert bad.status == 5
    assert "cosine_min -" in bad.err
    assert "worst" in bad.err


@pytest.mark.parametrize("content", [None, b"", b"<html>404</html>"])
def test_a_calibration_folder_without_a_usable_picture_is_status_3(vdali, model, tmp_path, cache, content) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    if content is not None:
        (folder / "photo.jpg").write_bytes(content)
    ended = vdali("export", model, "-p", "fp16", "--calibrate", folder, "-o", "half.onnx")
    assert (ended.status, ended.out) == (3, "")
    assert str(folder) in ended.err
    assert not list(tmp_path.glob("half*"))
    assert not list(cache.glob("models/*"))


def test_missing_external_data_is_status_5_and_names_the_file(vdali, pictures, tmp_path) -> None:
    path = tiny_classifier(tmp_path / "model.onnx")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="model.data", size_threshold=0)
    (tmp_path / "model.data").unlink()
    for words in (("validate", path, pictures, "-p", "fp16"), ("run", pictures, "-m", path, "-o", tmp_path / "out")):
        ended = vdali(*words)
        assert ended.status == 5
        assert "model.data" in ended.err


def test_external_data_that_is_cut_short_is_status_5(vdali, pictures, tmp_path) -> None:
    path = tiny_classifier(tmp_path / "model.onnx")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="model.data", size_threshold=100)
    os.truncate(tmp_path / "model.data", 50)
    ended = vdali("validate", path, pictures, "-p", "fp16")
    assert ended.status == 5
    assert "External data length" in ended.err


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_a_cache_that_cannot_be_written_is_told_of_and_the_run_goes_on(
    vdali, model, pictures, monkeypatch, precision
) -> None:
    monkeypatch.setenv("VDALI_CACHE", "/proc/nothing")
    ended = vdali("run", pictures, "-m", model, "--precision", precision, "-o", "out")
    assert ended.status == 0
    assert f"cannot be written (No such file or directory): mean at {precision} is kept for this run alone" in ended.err
    assert "29 rows, 1 failure" in ended.err


def test_a_conversion_of_other_tools_or_limits_is_not_taken_from_the_cache(vdali, model, pictures, cache) -> None:
    words = ("validate", model, pictures, "-p", "fp16")
    vdali(*words)
    assert "converted and judged" not in vdali(*words).err
    (record,) = cache.glob("models/*.json")
    found = json.loads(record.read_text())
    for key, value in (("versions", {"vdali": "0.0.1"}), ("limits", {"cosine_min": 0.1})):
        changed = {**found, "facts": {**found["facts"], key: value}}
        record.write_text(json.dumps(changed))
        other = record.with_name(record.name.replace("fp16-", "fp16-0"))
        os.rename(record, other)
        os.rename(record.with_suffix(""), other.with_suffix(""))
        assert "converted and judged" in vdali(*words).err
        other.unlink()


@pytest.mark.parametrize("record", ["[]", '{"facts": 1, "refusal": "no"}'])
def test_a_damaged_record_of_a_conversion_is_made_again(vdali, model, pictures, cache, record) -> None:
    words = ("validate", model, pictures, "-p", "fp16")
    vdali(*words)
    (path,) = cache.glob("models/*.json")
    path.write_text(record)
    again = vdali(*words)
    assert again.status == 0
    assert "converted and judged" in again.err


def test_options_that_would_go_unheard_are_status_2(vdali, model, pictures) -> None:
    for words, says in (
        (("export", model, "-p", "fp16", "--mean", "0.1,0.1,0.1", "-o", "m.onnx"), "mean would change nothing"),
        (("export", model, "-p", "fp16", "-o", "m.bin"), "must end in .onnx"),
        (("export", model, "-p", "fp16", "-o", model), "is the fp32 model itself"),
        (("export", model, "--calibrate", pictures, "-o", "m.onnx"), "Leave --calibrate out"),
        (("validate", model, pictures, "-p", "fp16", "--iou-min", "0.5"), "nothing measures iou_min"),
    ):
        ended = vdali(*words)
        assert ended.status == 2
        assert says in ended.err


def test_a_plan_of_another_precision_than_the_one_asked_for_is_not_built(vdali, model, tmp_path) -> None:
    half = tmp_path / "half.onnx"
    assert vdali("export", model, "-p", "fp16", "-o", half).status == 0
    ended = vdali("build", half, "-p", "fp32", "--target", "sm89")
    assert ended.status == 2
    assert "is fp16, but fp32 was asked for" in ended.err


def test_a_plan_is_built_found_listed_verified_and_dropped(vdali, rtx, tmp_path) -> None:
    model = tiny_classifier(tmp_path / "model.onnx")
    words = ("build", model, "--target", "sm89,sm120", "-o", tmp_path / "copy.plan")
    built = vdali(*words)
    assert built.status == 0
    assert "built: no plan yet" in built.err
    assert "for sm89, sm120, batch 1,32,64: built, not run" in built.err
    assert (tmp_path / "copy.plan.json").exists()
    again = vdali(*words)
    assert "hit: built 20" in again.err
    listed = vdali("engines", "ls", "--json")
    (entry,) = json.loads(listed.out)
    assert vdali("engines", "verify").status == 0
    plan = Path(entry["plan"])
    plan.write_bytes(plan.read_bytes()[:-10])
    damaged = vdali("engines", "verify")
    assert damaged.status == 5
    assert "plan truncated" in damaged.out
    assert "built: plan truncated" in vdali(*words).err
    dropped = vdali("engines", "gc", "--keep", "0")
    assert dropped.status == 0
    assert plan.name in dropped.out
    assert not plan.exists()


def test_an_operator_that_tensorrt_lacks_is_status_5_in_the_parsers_words(vdali, rtx, tmp_path, cache) -> None:
    path = mean_colour_model(tmp_path / "model.onnx")
    model = onnx.load(path)
    model.graph.node.append(helper.make_node("NonZero", ["embedding"], ["where"], name="where_is_it"))
    model.graph.output.append(helper.make_tensor_value_info("where", TensorProto.INT64, [2, "k"]))
    onnx.save(model, path)
    ended = vdali("build", path, "--target", "sm89")
    assert (ended.status, ended.out) == (5, "")
    assert "NonZero plugin creator version 1 was not found in plugin registry" in ended.err
    assert not list(cache.glob("plans/*.plan*[!k]"))


def test_words_that_make_no_sense_are_status_2(vdali, model) -> None:
    for words in (
        ("engines", "make", model, "--precisions", "fp17"),
        ("build", model, "--batch-profile", "8,4,2"),
        ("build", model, "--target", "sm1"),
    ):
        assert vdali(*words).status == 2, words


def test_stated_limits_rule_the_conversion_too(vdali, model, pictures, monkeypatch) -> None:
    monkeypatch.setitem(_DEFAULTS, Precision.FP16, Limits(cosine_min=1.1))  # no conversion keeps this
    words = ("validate", model, pictures, "-p", "fp16")
    assert vdali(*words).status == 5
    assert vdali(*words, "--cosine-min", "0.99").status == 0
    assert vdali("run", pictures, "-m", model, "--precision", "fp16", "-o", "out").status == 5


def test_no_plan_is_built_from_a_file_that_only_says_its_precision(vdali, rtx, tmp_path, cache) -> None:
    liar = with_spec(tiny_classifier(tmp_path / "liar.onnx"), precision=Precision.FP16)
    ended = vdali("build", liar, "--target", "sm89")
    assert ended.status == 5
    assert "says fp16, but nothing in it computes in fp16" in ended.err
    assert not list(cache.glob("plans/*.plan"))
