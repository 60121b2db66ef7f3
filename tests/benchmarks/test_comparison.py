from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from vdali.benchmarks.comparison import ComparisonReport, Status, SystemRow, Winner
from vdali.benchmarks.measure import Spread
from vdali.benchmarks.render import render, verdicts


def row(system: str, rate: float = 100.0, **changes: Any) -> SystemRow:
    measured = SystemRow(
        system,
        Status.OK,
        description=f"{system} as it is",
        throughput=Spread(rate - 1, rate, rate + 1),
        cpu_ms=Spread(1.0, 2.0, 3.0),
        latency_p50_s=0.010,
        latency_p99_s=0.025,
        peak_memory_bytes=3 << 20,
    )
    return dataclasses.replace(measured, **changes)


def against(low: float, median: float, high: float) -> dict[str, Any]:
    return {"ours_over_this": Spread(low, median, high), "cpu_of_this_over_ours": Spread(1.5, 1.6, 1.7)}


def report(*rows: SystemRow, **changes: Any) -> ComparisonReport:
    found = ComparisonReport(
        model="toy",
        task="embed",
        weights="random (seed 0)",
        images=64,
        input_bytes=5_000_000,
        batch_size=32,
        rounds=3,
        device="cpu",
        cpus=2,
        ours="vdali",
        reference="torch",
        rows=rows,
    )
    return dataclasses.replace(found, **changes)


def test_who_wins_every_round_wins():
    assert row("torch", **against(1.1, 1.2, 1.3)).winner is Winner.OURS
    assert row("torch", **against(0.7, 0.8, 0.99)).winner is Winner.THEIRS
    assert row("torch", **against(0.9, 1.2, 1.3)).winner is Winner.NEITHER


def test_a_wrong_answer_never_wins():
    assert row("torch", status=Status.WRONG, **against(0.1, 0.2, 0.3)).winner is Winner.NEITHER


def test_a_report_survives_json_and_has_units_in_its_keys():
    whole = report(
        row("vdali", gpu_utilisation=0.5, gpu_memory_bytes=7),
        row("torch", **against(1.0, 2.0, 3.0), lowest_cosine=0.99999, median_cosine=1.0, worst_image="a.jpg"),
        SystemRow("ray", Status.ABSENT, note="No module named 'ray'"),
    )
    values = json.loads(json.dumps(whole.to_json()))
    assert ComparisonReport.from_json(values) == whole
    assert values["rows"][1]["throughput_samples_per_s"] == {"min": 99.0, "median": 100.0, "max": 101.0}
    assert values["rows"][1]["cpu_ms_per_sample"]["median"] == 2
    assert values["rows"][1]["winner"] == "neither"


def test_the_table_shows_every_number():
    text = render(report(row("vdali"), row("torch", 50.0, **against(1.9, 2.0, 2.1))))
    line = next(line for line in text.splitlines() if line.startswith("torch "))
    for cell in ("50.0 (49.0 to 51.0)", "2.00 (1.00 to 3.00)", "10/25", "3", "reference", "2.00 (1.90 to 2.10)"):
        assert cell in line
    assert line.endswith("  1.60 (1.50 to 1.70)")
    assert "GPU" not in text


def test_on_a_gpu_the_table_has_its_columns():
    text = render(report(row("vdali", gpu_utilisation=0.875, gpu_memory_bytes=5 << 20), row("torch"), device="cuda:0"))
    assert "GPU busy" in text
    assert "88 %" in text
    assert "?" in next(line for line in text.splitlines() if line.startswith("torch "))


def test_where_pytorch_wins_the_report_says_so():
    (sentence,) = verdicts(report(row("vdali"), row("torch", **against(0.7, 0.8, 0.9))))
    assert sentence.startswith("torch WINS here: vdali does 0.80 (0.70 to 0.90) times the images/s of torch, and 1.60")


def test_where_vdali_wins_the_report_says_by_how_much():
    (sentence,) = verdicts(report(row("vdali"), row("torch", **against(1.7, 1.8, 1.9))))
    assert sentence.startswith("vdali wins: vdali does 1.80 (1.70 to 1.90) times the images/s of torch")


def test_rounds_that_overlap_have_no_winner():
    (sentence,) = verdicts(report(row("vdali"), row("torch", **against(0.9, 1.0, 1.1))))
    assert sentence.startswith("No clear winner: vdali does 1.00")


def test_loaders_are_told_by_cpu_time_against_the_best_other_one_and_the_reference():
    ours = row("ours", worst_difference_levels=0.31)
    pil = row("PIL", ours_over_this=Spread(2.0, 2.1, 2.2), cpu_of_this_over_ours=Spread(2.4, 2.5, 2.6))
    best = row("best", ours_over_this=Spread(1.6, 1.7, 1.8), cpu_of_this_over_ours=Spread(1.6, 1.7, 1.8))
    floor = row("floor", competes=False, cpu_of_this_over_ours=Spread(0.9, 0.9, 0.9))
    wrong = row("wrong", status=Status.WRONG, note="far off", cpu_of_this_over_ours=Spread(0.5, 0.5, 0.5))
    whole = report(ours, pil, best, floor, wrong, ours="ours", reference="PIL", task="load")
    assert verdicts(whole)[-1] == (
        "In CPU-ms an image the best other loader (best) takes 1.70 (1.60 to 1.80) times, and PIL 2.50 (2.40 to 2.60) "
        "times what ours takes; its pixels are at most 0.31 levels (mean of an image) away."
    )


def test_a_machine_that_was_busy_with_other_things_is_told():
    rows = row("vdali"), row("torch", **against(1.7, 1.8, 1.9))
    assert len(verdicts(report(*rows, cpus_used_by_others_share=0.05))) == 1
    assert verdicts(report(*rows, cpus_used_by_others_share=0.42))[1].startswith(
        "Other processes used 42 % of the CPUs"
    )


def test_a_row_for_orientation_has_no_verdict():
    assert verdicts(report(row("vdali"), row("floor", competes=False, **against(0.7, 0.8, 0.9)))) == []


def test_a_wrong_answer_is_marked_and_its_speed_counts_for_nothing():
    wrong = row("vdali", status=Status.WRONG, note="cosine 0.5", lowest_cosine=0.5)
    whole = report(wrong, row("torch", **against(3.0, 3.5, 4.0)))
    assert verdicts(whole) == ["vdali gives a WRONG answer (cosine 0.5): its speed counts for nothing."]
    assert "cosine 0.50000 WRONG" in render(whole)


@pytest.mark.parametrize(
    ("status", "cell", "sentence"),
    [
        (Status.FAILED, "failed", "torch failed: no memory"),
        (Status.ABSENT, "not installed", "torch is not installed here: no memory"),
    ],
)
def test_a_system_without_numbers_is_a_marked_row(status: Status, cell: str, sentence: str):
    whole = report(row("vdali"), SystemRow("torch", status, note="no memory"), reference=None)
    assert cell in next(line for line in render(whole).splitlines() if line.startswith("torch "))
    assert verdicts(whole) == [sentence, "Fewer than two systems gave an answer: nothing was compared."]
