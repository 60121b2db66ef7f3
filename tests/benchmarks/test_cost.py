"""Costs from numbers, real runs and files: right sums, every assumption said, plain errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import vdali
from models import mean_colour_model
from pictures import write_numbered
from report_data import bench_document, comparison
from vdali.benchmarks import cost as cost_module
from vdali.benchmarks.cost import BILLION, MILLION, cost
from vdali.benchmarks.price import money
from vdali.engine.errors import InputNotFoundError, UsageError

EXAMPLE = Path(cost_module.__file__).with_name("prices.example.toml")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """OUT of a finished run: 19 rows and one failure."""
    folder = tmp_path_factory.mktemp("run")
    write_numbered(folder / "in", 20, bad=frozenset({7}))
    model = mean_colour_model(folder / "mean.onnx", (32, 24))
    vdali.run(folder / "in", model=model, out=folder / "out", device="cpu", lanes=2, micro_batch=4)
    return folder / "out"


def edited(out: Path, target: Path, **changes: object) -> Path:
    """A copy of OUT's run.json in another folder, with some keys changed."""
    target.mkdir()
    record = json.loads((out / "run.json").read_text()) | changes
    (target / "run.json").write_text(json.dumps(record))
    return target


def test_a_machine_without_a_price_file_is_refused():
    with pytest.raises(UsageError, match="--machine chooses among the machines of a price file"):
        cost(throughput=1.0, price_per_hour=2.0, machine="a")


def test_a_rate_and_a_price_give_the_cost_of_a_million_and_a_billion():
    found = cost(throughput=1000.0, price_per_hour=3.6, currency="EUR", images=500)
    assert found.of(MILLION) == pytest.approx(1.0)
    assert found.of(BILLION) == pytest.approx(1000.0)
    text = "\n".join(found.lines())
    assert "1,000,000 images: EUR 1.00 (16.7 min of one machine)" in text
    assert "1,000,000,000 images: EUR 1,000 (278 h of one machine)" in text
    assert "500 images: EUR 0.0005 (0.5 s of one machine)" in text
    document = json.loads(json.dumps(found.to_json()))
    assert document["cost_per_million_samples"] == pytest.approx(1.0)
    assert document["asked"] == {"images": 500, "cost": pytest.approx(0.0005), "hours": pytest.approx(500 / 3.6e6)}


def test_every_assumption_stands_beside_the_result_and_what_is_not_known_is_said():
    found = cost(throughput=10.0, price_per_hour=1.0, holds_for={"model": "vit", "resolution": "224x224"})
    assert list(found.assumptions)[:9] == [
        "rate",
        "price",
        "model",
        "precision",
        "resolution",
        "batch",
        "engine",
        "decoder",
        "hardware",
    ]
    assert found.assumptions["model"] == "vit"
    assert found.assumptions["hardware"] == "not stated"
    text = "\n".join(found.lines())
    assert all(f"  {name}: {value}" in text for name, value in found.assumptions.items())
    assert "not included" in text


def test_the_rate_of_a_run_is_its_images_over_its_seconds_with_what_it_used(finished):
    found = cost(run=finished, price_per_hour=2.0)
    (session,) = json.loads((finished / "run.json").read_text())["sessions"]
    assert found.rate.throughput == pytest.approx(20 / session["elapsed_s"])
    assumptions = found.assumptions
    assert "measured over 20 images" in assumptions["rate"]
    assert assumptions["model"] == "mean_colour (weights: none)"
    assert assumptions["precision"] == "fp32"
    assert assumptions["resolution"] == "24x32 pixels into the model"
    assert assumptions["batch"] == "4 images an engine call, 2 lanes"
    assert assumptions["engine"] == "onnxruntime:CPUExecutionProvider"
    assert "CPUs" in assumptions["hardware"]
    assert any("measure longer" in note for note in found.notes)
    assert any("1 of the 20 images failed" in note for note in found.notes)


def test_the_sessions_of_a_resumed_run_count_together_and_killed_ones_are_told(finished, tmp_path):
    sessions = [
        {"status": "killed"},
        {"status": "interrupted", "rows": 300, "failures": 0, "elapsed_s": 30.0},
        {"status": "finished", "rows": 90, "failures": 10, "elapsed_s": 10.0},
    ]
    found = cost(run=edited(finished, tmp_path / "out", sessions=sessions), price_per_hour=1.0)
    assert found.rate.throughput == pytest.approx(10.0)
    assert any("1 session of the run told no time" in note for note in found.notes)
    assert not any("measure longer" in note for note in found.notes)


def test_the_rate_of_a_benchmark_is_the_median_of_the_system_asked_for(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench_document()))
    found = cost(bench=path, price_per_hour=1.0)
    assert found.rate.throughput == 398.0
    assert "median of 5 rounds (398.0 (378.1 to 413.9); vdali in" in found.rate.source
    assert found.assumptions["model"] == "mobilenetv3_small_100 (weights: random (seed 0))"
    assert found.assumptions["hardware"] == "cpu, 2 CPUs (AMD EPYC)"
    assert found.assumptions["system"] == "vdali, turbo, 2 lanes"
    assert found.assumptions["data"] == "400 images of 52 kB"
    assert found.assumptions["resolution"] == "224x224 pixels into the model"
    assert cost(bench=path, system="torch", price_per_hour=1.0).rate.throughput == 100.2
    for useless in ("dali-torch", "fast-but-wrong", "nothing"):
        with pytest.raises(UsageError, match=r"It has: vdali \(ok\), torch \(ok\), dali-torch \(failed\)"):
            cost(bench=path, system=useless, price_per_hour=1.0)


def test_a_benchmark_of_several_models_needs_the_model_s_name(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench_document(comparison(), comparison("resnet50", torch_rate=50.0))))
    with pytest.raises(UsageError, match=r"mobilenetv3_small_100, resnet50\. Name one"):
        cost(bench=path, price_per_hour=1.0)
    assert cost(bench=path, system="torch", model="resnet50", price_per_hour=1.0).rate.throughput == 50.0


def test_a_price_file_is_the_user_s_and_the_example_is_marked_as_one(tmp_path):
    example = cost(throughput=1.0, prices=EXAMPLE, machine="invented-gpu-box")
    assert example.price.per_hour == 5.0
    assert any("EXAMPLE" in note for note in example.notes)
    mine = tmp_path / "mine.toml"
    mine.write_text('currency = "CHF"\nas_of = 2026-01-31\n[machines.box]\nprice_per_hour = 2\n')
    found = cost(throughput=1.0, prices=mine)
    assert (found.price.per_hour, found.price.currency, found.notes) == (2.0, "CHF", ())
    assert "box" in found.assumptions["price"]
    assert "as of 2026-01-31" in found.assumptions["price"]
    as_json = tmp_path / "mine.json"
    as_json.write_text('{"currency": "CHF", "machines": {"box": {"price_per_hour": 2}}}')
    assert cost(throughput=1.0, prices=as_json, machine="box").price.per_hour == 2.0


@pytest.mark.parametrize("value", [0, 0.0, -1.0, float("nan"), float("inf")])
def test_rates_and_prices_that_are_not_above_zero_are_refused(value, tmp_path):
    with pytest.raises(UsageError, match="price per hour must be a number above 0"):
        cost(throughput=1.0, price_per_hour=value)
    with pytest.raises(UsageError, match="throughput must be a number above 0"):
        cost(throughput=value, price_per_hour=1.0)
    prices = tmp_path / "prices.toml"
    prices.write_text(f"[machines.box]\nprice_per_hour = {value}\n")
    with pytest.raises(UsageError, match="price_per_hour of box"):
        cost(throughput=1.0, prices=prices)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("machines = 3", "names no machine"),
        ("", "names no machine"),
        ("[machines.a]\nprice = 1", "has no price_per_hour"),
        ('[machines.a]\nprice_per_hour = "1"', "must be a number above 0"),
        ("[machines.a]\nprice_per_hour = true", "must be a number above 0"),
        ("[machines.a]\nprice_per_hour = 1\n[machines.b]\nprice_per_hour = 2", r"It has: a, b\."),
        ("[machines", "not readable"),
    ],
)
def test_a_price_file_that_cannot_be_used_says_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        cost(throughput=1.0, prices=path)


def test_a_missing_price_file_or_one_of_another_shape_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="No price file"):
        cost(throughput=1.0, prices=tmp_path / "none.toml")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(UsageError, match="not a table"):
        cost(throughput=1.0, prices=tmp_path / "list.json")
    with pytest.raises(UsageError, match="has no machine other"):
        cost(throughput=1.0, prices=EXAMPLE, machine="other")


def test_exactly_one_rate_and_one_price_are_taken(finished):
    with pytest.raises(UsageError, match="one rate, got none"):
        cost(price_per_hour=1.0)
    with pytest.raises(UsageError, match="--throughput and --run"):
        cost(throughput=1.0, run=finished, price_per_hour=1.0)
    with pytest.raises(UsageError, match="one price, got none"):
        cost(throughput=1.0)
    with pytest.raises(UsageError, match="images must be >= 1"):
        cost(throughput=1.0, price_per_hour=1.0, images=0)


def test_a_run_that_is_empty_missing_unfinished_idle_or_of_another_version_is_a_plain_error(finished, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputNotFoundError, match="is empty"):
        cost(run=tmp_path / "empty", price_per_hour=1.0)
    with pytest.raises(InputNotFoundError, match="does not exist"):
        cost(run=tmp_path / "none", price_per_hour=1.0)
    with pytest.raises(UsageError, match=r"is not finished \(interrupted\)"):
        cost(run=edited(finished, tmp_path / "a", status="interrupted"), price_per_hour=1.0)
    with pytest.raises(UsageError, match="ended no image"):
        cost(run=edited(finished, tmp_path / "b", sessions=[]), price_per_hour=1.0)
    with pytest.raises(UsageError, match="has format_version 7; this vdali reads version 1"):
        cost(run=edited(finished, tmp_path / "c", format_version=7), price_per_hour=1.0)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run.json").write_text('{"status": ')
    with pytest.raises(UsageError, match="not readable"):
        cost(run=tmp_path / "d", price_per_hour=1.0)


def test_a_benchmark_file_of_another_version_or_none_at_all_is_a_plain_error(tmp_path):
    path = tmp_path / "bench.json"
    for text, message in (
        (json.dumps(bench_document(bench_version=2)), "of bench version 2"),
        ("{}", "no bench_version"),
        ("[]", "no bench_version"),
        ("{", "not JSON"),
        (json.dumps(bench_document(comparisons=[])), "these models: none"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            cost(bench=path, price_per_hour=1.0)
    with pytest.raises(UsageError, match="Cannot read"):
        cost(bench=tmp_path / "none.json", price_per_hour=1.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "X 1,234"), (12.3, "X 12.30"), (0.5, "X 0.50"), (0.3489, "X 0.349"), (0.00417, "X 0.00417")],
)
def test_amounts_keep_at_least_three_digits(value, text):
    assert money(value, "X") == text
