"""The whole job on real files: each sample ends once, and each row is its own file's."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import vdali
from models import mean_colour_model, with_spec
from pictures import number_of, write_numbered
from vdali.engine.errors import (
    InputNotFoundError,
    ModelError,
    OutputError,
    TooManyFailuresError,
    UsageError,
)
from vdali.engine.spec import Precision

BAD = frozenset(range(7, 300, 15))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return mean_colour_model(tmp_path_factory.mktemp("model") / "mean.onnx", size=(32, 32))


@pytest.fixture(scope="module")
def numbered(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("numbered")
    write_numbered(folder / "in", 300, bad=BAD)
    return folder / "in"


def rows_of(out: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(out / "rows")
    return dict(zip(table["id"].to_pylist(), np.array(table["embedding"].to_pylist()), strict=True))


def failures_of(out: Path) -> dict[str, dict]:
    return {row["id"]: row for row in pq.read_table(out / "failures").to_pylist()}


@pytest.mark.parametrize("decoder", ["turbo", "dali", "pillow"])
@pytest.mark.parametrize(("batch_size", "lanes"), [(8, 2), (1, 3)])
def test_every_row_is_its_own_files_and_every_bad_file_a_failure(tmp_path, model, numbered, decoder, batch_size, lanes):
    report = vdali.run(
        numbered, model=model, out=tmp_path / "out", decoder=decoder, batch_size=batch_size, lanes=lanes, part_rows=37
    )
    rows, failures = rows_of(tmp_path / "out"), failures_of(tmp_path / "out")
    assert report.status == "finished"
    assert len(rows) == 280
    assert {int(Path(sample_id).stem) for sample_id in failures} == BAD
    assert not rows.keys() & failures.keys()
    assert {sample_id: number_of(mean) for sample_id, mean in rows.items()} == {
        sample_id: int(Path(sample_id).stem) for sample_id in rows
    }
    ids = pq.read_table(tmp_path / "out" / "rows")["id"].to_pylist()
    assert len(ids) == len(set(ids))


def test_rows_do_not_depend_on_batch_size_lanes_or_bad_neighbours(tmp_path, model, numbered):
    vdali.run(numbered, model=model, out=tmp_path / "a", batch_size=1, lanes=1)
    vdali.run(numbered, model=model, out=tmp_path / "b", batch_size=64, micro_batch=64, lanes=2)
    a, b = rows_of(tmp_path / "a"), rows_of(tmp_path / "b")
    assert a.keys() == b.keys()
    assert all(np.array_equal(a[key], b[key]) for key in a)


def test_rows_come_in_the_order_of_the_source(tmp_path, model, numbered):
    vdali.run(numbered, model=model, out=tmp_path / "out", lanes=3, batch_size=2)
    ids = pq.read_table(tmp_path / "out" / "rows")["id"].to_pylist()
    assert ids == sorted(ids)


def test_a_finished_run_does_nothing_when_repeated(tmp_path, model, numbered):
    vdali.run(numbered, model=model, out=tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")}
    report = vdali.run(numbered, model=model, out=tmp_path / "out")
    assert report.status == "already_finished"
    assert (report.rows_total, report.failures_total) == (280, 20)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")} == before


def test_a_limited_run_goes_on_when_the_limit_is_lifted(tmp_path, model, numbered):
    first = vdali.run(numbered, model=model, out=tmp_path / "out", limit=50)
    second = vdali.run(numbered, model=model, out=tmp_path / "out")
    assert first.progress.listed == 50
    assert second.progress.already_done == 50
    assert len(rows_of(tmp_path / "out")) == 280


def test_another_model_option_or_input_is_refused_with_the_difference_named(
    tmp_path, tmp_path_factory, model, numbered
):
    vdali.run(numbered, model=model, out=tmp_path / "out", limit=8)
    other = mean_colour_model(tmp_path / "other.onnx", size=(16, 16))
    with pytest.raises(OutputError, match="model content"):
        vdali.run(numbered, model=other, out=tmp_path / "out")
    with pytest.raises(OutputError, match="truncated"):
        vdali.run(numbered, model=model, out=tmp_path / "out", truncated="salvage")
    with pytest.raises(OutputError, match="input"):
        vdali.run(tmp_path_factory.mktemp("elsewhere"), model=model, out=tmp_path / "out")


def test_permanent_failures_are_tried_again_only_on_request(tmp_path, model):
    paths = write_numbered(tmp_path / "in", 12, bad=frozenset({5}))
    vdali.run(tmp_path / "in", model=model, out=tmp_path / "out")
    paths[5].write_bytes(paths[4].read_bytes())
    assert vdali.run(tmp_path / "in", model=model, out=tmp_path / "out").status == "already_finished"
    report = vdali.run(tmp_path / "in", model=model, out=tmp_path / "out", retry_failures=True)
    assert (report.rows_total, report.failures_total, report.progress.already_done) == (12, 0, 11)


def test_too_many_failures_end_the_run_with_all_so_far_committed(tmp_path, model, numbered):
    with pytest.raises(TooManyFailuresError, match="allowed"):
        vdali.run(numbered, model=model, out=tmp_path / "out", max_failures=3, batch_size=4, lanes=1)
    assert 4 <= len(failures_of(tmp_path / "out")) < 20
    document = json.loads((tmp_path / "out" / "run.json").read_text())
    assert document["status"] == "failed"
    report = vdali.run(numbered, model=model, out=tmp_path / "out")
    assert (report.rows_total, report.failures_total) == (280, 20)


def test_no_image_is_an_error_that_says_what_was_seen_and_leaves_a_readable_table(tmp_path, model):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("no image")
    with pytest.raises(InputNotFoundError, match=r"\.txt"):
        vdali.run(tmp_path / "in", model=model, out=tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / "rows").num_rows == 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "failed"


def test_an_output_folder_inside_the_input_is_refused(tmp_path, model, numbered):
    with pytest.raises(UsageError, match="inside the INPUT"):
        vdali.run(numbered, model=model, out=numbered / "out")
    assert not (numbered / "out").exists()


def test_an_fp32_run_of_a_file_of_another_precision_is_refused(tmp_path, model, numbered):
    half = with_spec(shutil.copy(model, tmp_path / "half.onnx"), precision=Precision.FP16)
    with pytest.raises(ModelError, match="fp16"):
        vdali.run(numbered, model=half, out=tmp_path / "out", precision="fp32")
    assert not (tmp_path / "out").exists()


def test_shards_cover_the_input_without_overlap_or_gap(tmp_path, model, numbered):
    seen: list[str] = []
    for number in range(3):
        out = tmp_path / f"out-{number}"
        vdali.run(numbered, model=model, out=out, shard=f"{number}/3")
        seen += [*rows_of(out), *failures_of(out)]
    assert sorted(seen) == sorted(os.listdir(numbered))


def test_run_json_tells_what_was_used_and_counted(tmp_path, model, numbered):
    vdali.run(numbered, model=model, out=tmp_path / "out", decoder="turbo")
    document = json.loads((tmp_path / "out" / "run.json").read_text())
    assert document["status"] == "finished"
    assert document["counts"]["rows"] == 280
    assert document["counts"]["failures"] == 20
    assert document["counts"]["inputs"] == 300
    assert document["used"]["engine"] == "onnxruntime:CPUExecutionProvider"
    session = document["sessions"][-1]
    assert session["decoded_by"]["turbo"] == 40
    assert sum(session["decoded_by"].values()) == 280
    assert session["throughput_samples_per_s"] > 0
    assert {"read", "decode", "infer"} <= session["stages"].keys()


def test_samples_from_memory_can_be_run(tmp_path, model, numbered):
    pairs = [(f"picture {path.stem}", path.read_bytes()) for path in sorted(numbered.iterdir())[:6]]
    report = vdali.run(pairs, model=model, out=tmp_path / "out")
    assert report.rows_total == 6
    assert {number_of(mean) for mean in rows_of(tmp_path / "out").values()} == set(range(6))


def test_a_finished_run_takes_what_was_added_when_asked_to_list_again(tmp_path, model):
    paths = write_numbered(tmp_path / "in", 5)
    vdali.run(tmp_path / "in", model=model, out=tmp_path / "out")
    (tmp_path / "in" / "new.png").write_bytes(paths[1].read_bytes())
    paths[0].unlink()
    assert vdali.run(tmp_path / "in", model=model, out=tmp_path / "out").status == "already_finished"
    report = vdali.run(tmp_path / "in", model=model, out=tmp_path / "out", rescan=True)
    assert (report.rows_total, report.progress.rows, report.progress.listed) == (6, 1, 5)


def test_an_id_that_two_wrappers_find_twice_is_told_once(tmp_path, model):
    data = write_numbered(tmp_path / "in", 1)[0].read_bytes()
    vdali.run([("a", data), ("a", data), ("a", data)], model=model, out=tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "failures").to_pylist()
    assert [row["kind"] for row in table] == ["duplicate_id"] * 2
    assert all("failed too" not in row["message"] for row in table)


def test_a_model_in_int8_runs_on_a_cpu_whatever_its_engine_calls_itself(tmp_path, numbered):
    int8 = with_spec(mean_colour_model(tmp_path / "int8.onnx", size=(8, 8)), precision=Precision.INT8)
    report = vdali.run(numbered, model=int8, out=tmp_path / "out", precision="int8", limit=5)
    assert (report.status, report.rows_total) == ("finished", 5)


def test_a_session_that_was_killed_before_it_wrote_run_json_can_be_begun_again(tmp_path, numbered, model, monkeypatch):
    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("vdali.engine.job.environment", killed)
        with pytest.raises(KeyboardInterrupt):
            vdali.run(numbered, model=model, out=tmp_path / "out", limit=5)
    assert (tmp_path / "out" / "telemetry.parquet").exists()
    assert not (tmp_path / "out" / "run.json").exists()
    assert vdali.run(numbered, model=model, out=tmp_path / "out", limit=5).rows_total == 5
