"""The file of a sweep is whole after each point, goes on from there, and refuses other options."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import toy_systems
from vdali.benchmarks.comparison import Status, SystemRow
from vdali.benchmarks.measure import Spread
from vdali.benchmarks.process import Round
from vdali.benchmarks.report.write import write_report
from vdali.benchmarks.sweep import measure as sweep_measure
from vdali.benchmarks.sweep.file import SweepFile
from vdali.benchmarks.sweep.measure import CellTimer, Measured
from vdali.benchmarks.sweep.model import Gate, Series
from vdali.benchmarks.sweep.run import SweepPlan, conclude, measure_series
from vdali.benchmarks.sweep.system import WholeBatches, _whole_batches
from vdali.benchmarks.sweep.text import sweep_text
from vdali.engine.decoders.make import DecoderName
from vdali.engine.errors import InferError, ModelError, OutputError, UsageError, VdaliError
from vdali.engine.spec import Precision

TURBO, DALI = (Series(Precision.FP32, (224, 224), name) for name in (DecoderName.TURBO, DecoderName.DALI))
FP16 = Series(Precision.FP16, (224, 224), DecoderName.TURBO)
FACTS = {"max_batch": 64, "precisions": ["fp32"]}
RATES = {1: 100.0, 2: 200.0, 4: 300.0, 8: 303.0}


class WrittenTimer:
    """Timer whose rates are written down; it counts what it was asked, and is killed after ``dies_after`` points."""

    def __init__(self, *, failing: dict[int, str] | None = None, dies_after: int = 1000, again: float | None = 1.01):
        self.asked: list[int] = []
        self.compared: list[int] = []
        self._failing = failing or {}
        self._dies_after = dies_after
        self._again = again

    def measure(self, make, batch_size, expected_rate):
        if len(self.asked) == self._dies_after:
            raise KeyboardInterrupt
        self.asked.append(batch_size)
        if batch_size in self._failing:
            note = self._failing[batch_size]
            return Measured(SystemRow("cell", Status.FAILED, note=note, description="a system"))
        rate = RATES[batch_size]
        row = SystemRow(
            "cell",
            Status.OK,
            description="a system",
            throughput=Spread(rate, rate, rate),
            cpu_ms=Spread(1.0, 1.0, 1.0),
            latency_p50_s=0.01,
            latency_p99_s=0.02,
            peak_memory_bytes=1 << 20,
        )
        return Measured(row, 0.01)

    def gain(self, half, whole, batch_size, rate):
        self.compared.append(batch_size)
        return self._again


def contender(series: Series):
    return (lambda batch_size: partial(toy_systems.Counting)), Gate.REFERENCE


def new_file(path: Path, **changes) -> SweepFile:
    return SweepFile(path, FACTS | changes, more={"model": "toy"})


def measured(file: SweepFile, timer: WrittenTimer, *series: Series, resolve=contender):
    plan = SweepPlan(series, 64, "224x224")
    measure_series(plan, resolve, timer, file, lambda line: None)
    return conclude(plan, file, [], [], vnni=True)


def test_a_sweep_grows_to_its_plateau_and_the_report_draws_it(tmp_path):
    timer = WrittenTimer()
    document = measured(new_file(tmp_path / "s.json"), timer, TURBO)
    assert timer.asked == [1, 2, 4, 8]
    assert timer.compared == [8]  # only a gain that would end the series is measured again
    assert document["finished"]
    marks = [(cell["batch_size"], cell.get("plateau"), cell.get("recommended")) for cell in document["cells"]]
    assert marks == [(1, None, None), (2, None, None), (4, True, True), (8, None, None)]
    page = write_report(tmp_path / "s.json", tmp_path / "s.html").read_text()
    assert "recommended: batch size 4, fp32, 224x224, turbo, 300 images/s; twice the batch gains 1 %" in page
    text = sweep_text(document)
    assert "4  ████████████████████████████████     300 images/s  1.50x" in text
    assert "1 MiB  <- plateau, recommended" in text


def test_a_gain_that_seemed_too_small_and_is_not_lets_the_series_go_on(tmp_path):
    timer = WrittenTimer(again=1.2, failing={16: "MemoryError: no room"})
    document = measured(new_file(tmp_path / "s.json"), timer, TURBO)
    assert timer.asked == [1, 2, 4, 8, 16]
    assert [cell["gain_over_half_batch"] for cell in document["cells"]] == [None, 2.0, 1.5, 1.2, None]
    assert document["cells"][-1]["error"] == "out of memory: MemoryError: no room"
    assert document["reason"] == "memory ends at batch size 16"


def test_two_that_do_not_fit_beside_each_other_are_judged_by_what_each_did_alone(tmp_path):
    document = measured(new_file(tmp_path / "s.json"), WrittenTimer(again=None), TURBO)
    assert document["cells"][-1]["gain_over_half_batch"] == pytest.approx(1.01)
    assert document["cells"][-2]["plateau"]


def test_a_failed_point_or_a_model_that_cannot_be_had_is_a_row_and_the_others_go_on(tmp_path):
    def resolve(series: Series):
        if series is FP16:
            raise ModelError("refused by the gate")
        return contender(series)

    timer = WrittenTimer(failing={1: "DALI is not installed"})
    file = new_file(tmp_path / "s.json")
    measured(file, timer, DALI)
    document = measured(file, WrittenTimer(), DALI, FP16, TURBO, resolve=resolve)
    errors = {(c["precision"], c["decoder"]): c["error"] for c in document["cells"] if c["error"] is not None}
    assert errors == {("fp32", "dali"): "DALI is not installed", ("fp16", "turbo"): "refused by the gate"}
    assert [cell["decoder"] for cell in document["cells"] if cell.get("recommended")] == ["turbo"]
    assert "DALI is not installed" in sweep_text(document)
    assert "refused by the gate" in write_report(tmp_path / "s.json", tmp_path / "s.md").read_text()


def test_what_is_done_is_not_measured_again(tmp_path):
    path = tmp_path / "s.json"
    with pytest.raises(KeyboardInterrupt):
        measured(new_file(path), WrittenTimer(dies_after=2), TURBO)
    kept = json.loads(path.read_text())
    assert not kept["finished"]
    assert [cell["batch_size"] for cell in kept["cells"]] == [1, 2]
    rest = WrittenTimer()
    file = new_file(path)
    assert file.found == 2
    measured(file, rest, TURBO)
    assert rest.asked == [4, 8]
    nothing = WrittenTimer()
    document = measured(new_file(path), nothing, TURBO)
    assert nothing.asked == []
    assert document["cells"] == json.loads(path.read_text())["cells"]
    assert document["cells"][:2] == kept["cells"]


def test_failed_points_are_measured_again_where_that_is_asked_for(tmp_path):
    path = tmp_path / "s.json"
    measured(new_file(path), WrittenTimer(failing={2: "it fell"}), TURBO)
    same = WrittenTimer()
    measured(new_file(path), same, TURBO)
    assert same.asked == []
    again = WrittenTimer()
    document = measured(SweepFile(path, FACTS, more={}, retry_failures=True), again, TURBO)
    assert again.asked == [2, 4, 8]
    assert all(cell["error"] is None for cell in document["cells"])


def test_other_options_are_refused_by_name(tmp_path):
    path = tmp_path / "s.json"
    measured(new_file(path), WrittenTimer(), TURBO)
    with pytest.raises(OutputError, match="max batch 64, now 8; precisions fp32, now fp32, fp16"):
        new_file(path, max_batch=8, precisions=["fp32", "fp16"])
    path.write_text(json.dumps({"bench_version": 1, "comparisons": []}))
    with pytest.raises(OutputError, match="another benchmark's file"):
        new_file(path)
    path.write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        new_file(path)


def test_points_are_measured_in_processes_and_the_end_of_memory_is_a_row(tmp_path):
    timer = CellTimer([Path("a.jpg"), Path("b.jpg")], 1, 2, 0.05, None)
    makers = {
        TURBO: (lambda batch_size: partial(toy_systems.Batched, batch_size, None)),
        DALI: (lambda batch_size: partial(toy_systems.Batched, batch_size, 2)),
        FP16: (lambda batch_size: toy_systems.Killed),
    }
    document = measured(
        new_file(tmp_path / "s.json"),
        timer,
        TURBO,
        DALI,
        FP16,
        resolve=lambda series: (makers[series], Gate.REFERENCE),
    )
    rows = [(c["precision"], c["decoder"], c["batch_size"], c["error"]) for c in document["cells"]]
    assert rows == [
        ("fp32", "turbo", 1, None),
        ("fp32", "turbo", 2, None),
        ("fp32", "turbo", 4, None),
        ("fp32", "turbo", 8, None),
        ("fp32", "dali", 1, None),
        ("fp32", "dali", 2, "out of memory: MemoryError: no room for 8 bytes"),
        ("fp16", "turbo", 1, "its process was ended by SIGKILL, perhaps for lack of memory"),
    ]
    recommended = next(cell for cell in document["cells"] if cell.get("recommended"))
    assert (recommended["decoder"], recommended["batch_size"], recommended["plateau"]) == ("turbo", 4, True)
    assert recommended["peak_memory_bytes"] > 1 << 20
    assert [note["system"].partition(" over")[0] for note in document["series"]] == ["counts"] * 3


class NoRoom:
    """Engine that has memory for two images at once."""

    name, spec, content = "toy", None, ""

    def infer(self, pixels):
        if len(pixels) > 2:
            raise InferError("runtime_error", "Failed to allocate memory for requested buffer of size 822083584")
        return {"embedding": pixels}

    def close(self) -> None:
        pass


def test_an_engine_without_memory_for_a_batch_ends_the_pass_instead_of_going_on_one_by_one():
    engine = WholeBatches(NoRoom())
    assert len(engine.infer(np.zeros((2, 1, 1, 3), np.uint8))["embedding"]) == 2
    with pytest.raises(VdaliError, match="Failed to allocate memory") as caught:
        engine.infer(np.zeros((3, 1, 1, 3), np.uint8))
    assert not isinstance(caught.value, InferError)  # which the data path would answer by trying single images


def test_a_measurement_that_others_disturbed_is_made_once_more_and_the_better_one_counts(monkeypatch):
    shares = iter([0.0, 0.5, 0.3, 0.02, 0.4, 0.6, 0.05])

    def turns(entrants, files, **words) -> float:
        entrants[0].rounds = [Round(wall_s=len(files) / 100.0, cpu_s=0.1, latencies_s=(0.1,))]
        return next(shares)

    monkeypatch.setattr(sweep_measure, "take_turns", turns)
    timer = CellTimer([Path("a.jpg")], 1, 1, 0.1, None)
    assert timer.measure(toy_systems.Counting, 1, None).others_share == 0.3  # after a probe, and 0.5
    assert timer.measure(toy_systems.Counting, 1, 100.0).others_share == 0.02
    assert timer.measure(toy_systems.Counting, 1, 100.0).others_share == 0.4
    assert timer.measure(toy_systems.Counting, 1, 100.0).others_share == 0.05


class OfAGpu(NoRoom):
    """Engine that looks like one of a GPU, built for batches of 64."""

    max_batch = 64
    device = None

    def output_specs(self, rows):
        return {}

    def new_context(self, stream):
        raise NotImplementedError


def test_a_batch_beyond_what_a_plan_was_built_for_is_refused_not_cut():
    engine = OfAGpu()
    assert _whole_batches(64, engine) is engine
    with pytest.raises(VdaliError, match=r"takes 64 images at most\. Build a plan for more: .* 1,128,128"):
        _whole_batches(128, engine)
