"""A whole comparison, vdali against PyTorch, with a network so small that starting PyTorch is all that takes time."""

from __future__ import annotations

from pathlib import Path

import pytest
from models import mean_colour_model, with_spec
from pictures import write_numbered
from vdali.benchmarks.compare import compare
from vdali.benchmarks.comparison import ComparisonReport, Status, SystemRow
from vdali.engine.errors import InputNotFoundError, ModelError, UsageError
from vdali.engine.spec import Precision, Task
from vdali.export.model import export_model
from vdali.export.options import ExportOptions

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "toy.onnx"
    export_model("toy_systems:network", path, ExportOptions(task=Task.EMBED, mean=(0.5,) * 3, std=(0.25,) * 3))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_numbered(tmp_path_factory.mktemp("photos"), 21, kinds=("JPEG", "PNG"))


def row_of(report: ComparisonReport, system: str) -> SystemRow:
    return next(row for row in report.rows if row.system == system)


def test_vdali_and_pytorch_give_the_same_answer_in_alternating_rounds(toy: Path, files: list[Path]):
    report = compare(toy, files, ["torch", "ray"], rounds=2, batch_size=8, device="cpu")
    assert [row.system for row in report.rows] == ["vdali", "torch", "ray"]
    assert (report.ours, report.reference, report.images, report.rounds) == ("vdali", "torch", 21, 2)
    ours, torch = row_of(report, "vdali"), row_of(report, "torch")
    assert (ours.status, torch.status) == (Status.OK, Status.OK), (ours.note, torch.note)
    assert ours.lowest_cosine is not None
    assert ours.lowest_cosine > 0.9999
    assert torch.ours_over_this is not None
    assert torch.throughput is not None
    assert torch.throughput.low > 0
    for row in (ours, torch):
        assert row.peak_memory_bytes
        assert row.latency_p50_s is not None
        assert row.latency_p99_s is not None
        assert 0 < row.latency_p50_s <= row.latency_p99_s
    assert row_of(report, "ray").status in (Status.ABSENT, Status.OK)


def test_a_wrong_answer_is_marked_and_a_system_that_fails_is_a_row(toy: Path, files: list[Path], tmp_path: Path):
    other = tmp_path / "other.onnx"
    # the file says that its weights were made with seed 1, so PyTorch builds another network than the file holds
    other.write_bytes(toy.read_bytes())
    with_spec(other, weights="random (seed 1)")
    report = compare(other, files, ["vdali", "torch"], rounds=1, batch_size=8, device="cpu")
    assert row_of(report, "torch").status is Status.OK
    ours = row_of(report, "vdali")
    assert ours.status is Status.WRONG
    assert "to torch for" in ours.note
    assert ours.worst_image in map(str, files)


def test_a_model_that_only_vdali_can_run_has_a_marked_row_for_pytorch(files: list[Path], tmp_path: Path):
    model = mean_colour_model(tmp_path / "mean.onnx")
    report = compare(model, files, ["vdali", "torch"], rounds=1, device="cpu")
    assert row_of(report, "vdali").status is Status.OK
    torch = row_of(report, "torch")
    assert torch.status is Status.FAILED
    assert "there is no PyTorch module to compare with" in torch.note
    assert report.reference is None


def test_a_damaged_photo_fails_a_system_and_not_the_comparison(tmp_path: Path):
    model = mean_colour_model(tmp_path / "mean.onnx")
    photos = write_numbered(tmp_path / "photos", 4, bad=frozenset({2}))
    (row,) = compare(model, photos, ["vdali"], rounds=1, device="cpu").rows
    assert row.status is Status.FAILED
    assert "1 images failed, first" in row.note
    assert str(photos[2]) in row.note


def test_two_precisions_of_vdali_are_held_against_each_other(files: list[Path], tmp_path: Path):
    model = mean_colour_model(tmp_path / "mean.onnx")
    half = with_spec(mean_colour_model(tmp_path / "half.onnx"), precision=Precision.FP16)
    report = compare(model, files, ["vdali", "vdali:fp16"], rounds=1, device="cpu", precisions={Precision.FP16: half})
    assert report.reference == "vdali"
    second = row_of(report, "vdali:fp16")
    assert "fp16" in second.description
    assert second.lowest_cosine == pytest.approx(1)


def test_words_that_lead_nowhere_are_refused_before_anything_starts(files: list[Path], tmp_path: Path):
    model = mean_colour_model(tmp_path / "mean.onnx")
    with pytest.raises(UsageError, match="Unknown system 'tensorflow'"):
        compare(model, files, ["tensorflow"])
    with pytest.raises(UsageError, match="There is no model file for 'vdali:int8'"):
        compare(model, files, ["vdali:int8"])
    with pytest.raises(UsageError, match="No device 'tpu'"):
        compare(model, files, ["vdali"], device="tpu")
    with pytest.raises(InputNotFoundError, match="no image"):
        compare(model, [], ["vdali"])
    with pytest.raises(ModelError, match="There is no model file"):
        compare(tmp_path / "none.onnx", files, ["vdali"])
