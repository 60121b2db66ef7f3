"""``python -m vdali.benchmarks``: its parts, and the file that they leave."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from models import mean_colour_model
from vdali.benchmarks import __main__ as bench
from vdali.benchmarks.bench_file import read_bench
from vdali.benchmarks.report.write import write_report

pytest.importorskip("skimage")


@pytest.fixture
def toy_models(tmp_path, monkeypatch) -> Path:
    """Folder of a benchmark whose only model is there already."""
    monkeypatch.setattr(bench, "LOADER_PHOTOS", 8)
    monkeypatch.setattr(bench, "MODELS", (bench.BenchModel("timm/toy", 8),))
    return mean_colour_model(tmp_path / "toy-embed.onnx").parent


def test_a_part_by_itself_leaves_a_file_of_its_own_that_a_report_can_be_made_of(toy_models):
    words = ["--folder", str(toy_models), "--part", "stages", "--rounds", "2"]
    ended = CliRunner().invoke(bench.main, words, catch_exceptions=False)
    assert ended.exit_code == 0
    assert "whole over the sum of its stages: " in ended.output
    document = read_bench(toy_models / "bench-stages.json")
    assert set(document["stages"]["cpu_ms_per_sample"]) == {"read", "decode", "infer", "sink", "whole"}
    assert document["stages"]["images"] == 8
    page = write_report(toy_models / "bench-stages.json", toy_models / "report.md").read_text()
    assert "## Stages" in page


def test_the_usual_parts_run_when_none_is_named_and_large_photos_when_a_folder_is(toy_models, monkeypatch):
    measured = []
    monkeypatch.setattr(bench._Bench, "measured", lambda self, part: measured.append(part) or {})
    for words in ([], ["--large", str(toy_models)]):
        assert CliRunner().invoke(bench.main, ["--folder", str(toy_models), *words]).exit_code == 0
    assert measured == ["loaders", "stages", "models", "robustness"] * 2 + ["large"]
    assert (toy_models / "bench.json").exists()


def test_a_share_of_the_images_is_at_least_one(tmp_path):
    assert bench.BenchSettings(tmp_path, 1, share=0.1).count(64) == 6
    assert bench.BenchSettings(tmp_path, 1, share=0.001).count(64) == 1
