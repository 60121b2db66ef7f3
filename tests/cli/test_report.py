"""The command about what was measured: costs with their assumptions, and the page of a run or a benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_data import bench_document, comparison, diagnosis_document, sweep_document
from vdali.benchmarks.report.input import read_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory, model, pictures) -> Path:
    """OUT of a real run."""
    import vdali

    out = tmp_path_factory.mktemp("finished") / "out"
    vdali.run(pictures, model=model, out=out, batch_size=4)
    return out


@pytest.fixture
def bench(tmp_path) -> Path:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench_document(comparison(), comparison("resnet50", torch_rate=17.0))))
    return path


def test_a_rate_and_a_price_give_the_cost_and_every_assumption(vdali):
    words = ("cost", "--throughput", 400, "--price-per-hour", 1.44, "--images", 250_000, "--assume", "model=resnet50")
    text = vdali(*words).out
    assert text.startswith("250,000 images: USD 0.25 (10.4 min of one machine)\n1,000,000 images: USD 1.00 ")
    assert "1,000,000,000 images: USD 1,000 (694 h of one machine)" in text
    assumed = [line.partition(":")[0].strip() for line in text.splitlines() if line.startswith("  ")]
    assert {"rate", "price", "model", "precision", "resolution", "batch", "hardware", "not included"} <= set(assumed)
    assert "  model: resnet50\n" in text
    assert "  precision: not stated\n" in text
    document = json.loads(vdali(*words, "--json").out)
    assert document["cost_per_million_samples"] == pytest.approx(1.0)
    assert document["asked"]["cost"] == pytest.approx(0.25)


def test_the_cost_of_a_run_comes_from_what_it_measured(vdali, finished):
    document = json.loads(vdali("cost", "--run", finished, "--price-per-hour", 2, "--currency", "EUR", "--json").out)
    assert document["throughput_samples_per_s"] == pytest.approx(read_run(finished).throughput)
    assert document["currency"] == "EUR"
    assert document["assumptions"]["resolution"] == "16x16 pixels into the model"
    assert document["assumptions"]["batch"].startswith("4 images an engine call, ")
    assert any("measured over only" in note for note in document["notes"])


def test_the_cost_of_a_benchmark_is_that_of_the_system_that_is_named(vdali, bench):
    words = ("cost", "--bench", bench, "--model", "resnet50", "--system", "torch", "--price-per-hour", 1, "--json")
    assert json.loads(vdali(*words).out)["throughput_samples_per_s"] == pytest.approx(17.0)


def test_the_cost_of_a_sweep_is_that_of_its_recommended_point(vdali, tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps(sweep_document()))
    text = vdali("cost", "--bench", "sweep.json", "--price-per-hour", 1).out
    assert "  rate: 1,737.14 images/s, the recommended point of the sweep in sweep.json\n" in text
    assert "  precision: fp16\n" in text
    assert vdali("report", "sweep.json", "--price-per-hour", 1, "-o", "page.md").status == 0


def test_the_example_of_a_price_file_can_be_used_and_says_that_it_is_one(vdali, tmp_path):
    (tmp_path / "prices.toml").write_text(vdali("cost", "--example-prices").out)
    text = vdali("cost", "--throughput", 100, "--prices", "prices.toml", "--machine", "invented-cpu-box").out
    assert "EXAMPLE file" in text
    assert "EUR 1.39" in text


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--throughput", "5", "--price-per-hour", "0"], 2, "The price per hour must be a number above 0, got 0.0."),
        (["--throughput", "0", "--price-per-hour", "1"], 2, "The throughput must be a number above 0, got 0.0."),
        (["--throughput", "nan", "--price-per-hour", "1"], 2, "The throughput must be a number above 0, got nan."),
        (["--throughput", "5"], 2, "A cost needs one price, got none. Give one of --price-per-hour, --prices."),
        (["--price-per-hour", "5"], 2, "A cost needs one rate, got none. Give one of --throughput, --run, --bench."),
        (["--throughput", "5", "--run", "out", "--price-per-hour", "5"], 2, "got --throughput and --run"),
        (["--throughput", "5", "--price-per-hour", "1", "--images", "0"], 2, "must be >= 1, got 0"),
        (["--throughput", "5", "--price-per-hour", "1", "--assume", "resnet50"], 2, "--assume takes NAME=TEXT"),
        (["--throughput", "5", "--price-per-hour", "1", "--system", "torch"], 2, "of a bench file"),
        (["--throughput", "5", "--prices", "none.toml"], 2, "No price file none.toml."),
        (["--run", "nowhere", "--price-per-hour", "1"], 3, "nowhere does not exist: it is not the output of a run."),
        (["--bench", "{bench}", "--price-per-hour", "1"], 2, "Name one of them"),
        (["--bench", "undecided.json", "--price-per-hour", "1"], 2, "undecided.json recommends no point"),
        (["--throughput", "five", "--price-per-hour", "1"], 2, "'five' is not a valid float"),
    ],
)
def test_a_cost_that_cannot_be_told_ends_with_a_plain_message(vdali, tmp_path, bench, words, status, says):
    cells = [cell for cell in sweep_document()["cells"] if not cell.get("recommended")]
    (tmp_path / "undecided.json").write_text(json.dumps(sweep_document() | {"cells": cells}))
    ended = vdali("cost", *[word.format(bench=bench) for word in words])
    assert (ended.status, ended.out) == (status, "")
    assert says in ended.err


def test_the_page_of_a_run_shows_its_telemetry_and_its_cost(vdali, tmp_path, finished):
    (tmp_path / "diagnosis.json").write_text(json.dumps(diagnosis_document()))
    words = ("report", finished, "--diagnosis", "diagnosis.json", "--price-per-hour", 2.5)
    ended = vdali(*words, "-o", "page.html")
    assert (ended.status, ended.out, ended.err) == (0, "", "written: page.html\n")
    page = (tmp_path / "page.html").read_text()
    for text in ("Over time", "CPUs used by this process", "engine idles 78 %", "USD 2.50 an hour", "29"):
        assert text in page
    assert "http://" not in page
    assert "https://" not in page
    assert vdali(*words, "-o", "page.md").status == 0
    assert "## Over time" in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize("document", [bench_document(), sweep_document(), diagnosis_document()])
def test_files_of_all_commands_become_a_page(vdali, tmp_path, document):
    (tmp_path / "found.json").write_text(json.dumps(document))
    assert vdali("report", "found.json", "-o", "page.html").status == 0
    assert "<title>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["empty", "-o", "page.html"], 3, "empty is empty: it is not the output of a run. Give the folder that"),
        (["nowhere", "-o", "page.html"], 3, "nowhere does not exist"),
        (["old.json", "-o", "page.html"], 2, "old.json is of bench version 0, this vdali reads version 1."),
        (["broken.json", "-o", "page.html"], 2, "broken.json is not readable as a result"),
        (["{bench}", "-o", "page.pdf"], 2, "A report is written as .html or .md, got page.pdf"),
        (["{bench}", "-o", "no/page.html"], 1, "Cannot write no/page.html: No such file or directory"),
        (["{bench}", "-o", "page.html", "--images", "5"], 2, "A cost needs one price, got none."),
        (["{bench}"], 2, "Missing option '-o'"),
    ],
)
def test_a_page_that_cannot_be_made_ends_with_a_plain_message(vdali, tmp_path, bench, words, status, says):
    (tmp_path / "empty").mkdir()
    (tmp_path / "old.json").write_text(json.dumps(bench_document(bench_version=0)))
    (tmp_path / "broken.json").write_text("{")
    ended = vdali("report", *[word.format(bench=bench) for word in words])
    assert (ended.status, ended.out) == (status, "")
    assert says in ended.err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "document",
    [
        {"bench_version": 1, "comparisons": [{"ours": "vdali", "reference": None, "rows": [{}]}]},
        {"bench_version": 1, "comparisons": 5, "notes": 5},
    ],
)
def test_a_file_of_the_right_version_that_is_damaged_is_told(vdali, tmp_path, document):
    (tmp_path / "b.json").write_text(json.dumps(document))
    for words in (("report", "b.json", "-o", "r.html"), ("cost", "--bench", "b.json", "--price-per-hour", 1)):
        ended = vdali(*words)
        assert ended.status == 2
        assert ended.err.startswith("vdali: b.json is damaged: ")
    assert not (tmp_path / "r.html").exists()


def test_what_follows_from_rate_and_price_cannot_be_assumed_otherwise(vdali):
    ended = vdali("cost", "--throughput", 10, "--price-per-hour", 1, "--assume", "rate=1000 images/s")
    assert ended.status == 2
    assert "'rate' cannot be assumed" in ended.err


def test_a_cost_that_is_no_number_is_refused(vdali):
    ended = vdali("cost", "--throughput", 1e-320, "--price-per-hour", 1, "--json")
    assert ended.status == 2
    assert "more than can be counted" in ended.err
