"""OUT: whose it is, who writes to it, and what run.json says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from vdali.engine.batch import Failure, Rows
from vdali.engine.errors import OutputError, UsageError
from vdali.engine.preprocess import Preprocess
from vdali.engine.sinks.npy import NpySink
from vdali.engine.sinks.open import open_sink
from vdali.engine.sinks.parquet import ParquetSink
from vdali.engine.sinks.run_dir import OutputFormat, RunDirectory, RunStatus, fingerprint
from vdali.engine.spec import ModelSpec, Task

SPEC = ModelSpec(name="toy", task=Task.EMBED, preprocess=Preprocess(size=(8, 8), resize=(8, 8)))
PARTS = {"model content": "abc", "precision": "fp32", "inputs": "/photos"}


def run_directory(out, parts=PARTS, **options) -> RunDirectory:
    return RunDirectory(out, spec=options.pop("spec", SPEC), fingerprint_parts=parts, **options)


def rows(*ids: str) -> Rows:
    return Rows(list(ids), {"embedding": np.ones((len(ids), 4), np.float32), "salvaged": np.zeros(len(ids), bool)})


def finish(out, *, failures=(), ids=("a", "b"), **options) -> None:
    with run_directory(out, **options) as run:
        run.start({"python": "3.11"})
        sink = open_sink(run)
        sink.write(rows(*ids), list(failures))
        sink.commit()
        run.finish(RunStatus.FINISHED, used={"decoder": "turbo"}, counts={"inputs": 2}, session={"cpu_s": 1.5})


def record_of(out) -> dict:
    return json.loads((out / "run.json").read_text())


def test_run_json_says_what_was_run_and_counts_what_the_parts_hold(tmp_path):
    out = tmp_path / "new" / "out"
    finish(out, failures=[Failure("c", "decode", "truncated", "lost"), Failure("d", "read", "timeout", "slow", True)])
    record = record_of(out)
    assert record["status"] == "finished"
    assert record["spec"] == json.loads(SPEC.dumps())
    assert record["output_format"] == "parquet"
    assert record["environment"] == {"python": "3.11"}
    assert record["used"] == {"decoder": "turbo"}
    assert record["counts"] == {
        "inputs": 2,
        "rows": 2,
        "failures": 2,
        "failures_by_kind": {"decode/truncated": 1, "read/timeout": 1},
    }
    assert record["fingerprint"] == fingerprint(record["fingerprint_parts"])
    assert PARTS.items() <= record["fingerprint_parts"].items()
    (session,) = record["sessions"]
    assert session["status"] == "finished"
    assert session["cpu_s"] == 1.5
    assert session["wall_s"] >= 0
    assert session["started_at"] <= session["ended_at"]


def test_a_fingerprint_depends_on_every_part_and_not_on_their_order():
    assert fingerprint(PARTS) == fingerprint(dict(reversed(PARTS.items())))
    assert (
        len({fingerprint(PARTS), fingerprint({**PARTS, "precision": "fp16"}), fingerprint({"precision": "fp32"})}) == 3
    )


def test_a_finished_run_is_known_as_finished(tmp_path):
    finish(tmp_path)
    with run_directory(tmp_path) as run:
        assert run.finished
    assert record_of(tmp_path)["status"] == "finished"
    assert len(record_of(tmp_path)["sessions"]) == 1


def test_a_finished_run_whose_part_is_gone_is_not_finished(tmp_path):
    finish(tmp_path)
    (tmp_path / "rows/part-00000.parquet").unlink()
    with run_directory(tmp_path) as run:
        assert not run.finished


@pytest.mark.parametrize(
    ("retryable", "retry_failures", "finished"),
    [(False, False, True), (True, False, False), (False, True, False), (True, True, False)],
)
def test_a_finished_run_with_failures_worth_another_try_is_not_finished(tmp_path, retryable, retry_failures, finished):
    finish(tmp_path, failures=[Failure("c", "read", "timeout", "slow", retryable)])
    with run_directory(tmp_path, retry_failures=retry_failures) as run:
        assert run.finished is finished


def test_another_fingerprint_is_refused_and_the_difference_named(tmp_path):
    finish(tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(OutputError) as caught:
        run_directory(tmp_path, {**PARTS, "precision": "fp16", "shard": "1/2"})
    message = str(caught.value)
    assert "precision: fp32 there, fp16 now" in message
    assert "shard: nothing there, 1/2 now" in message
    assert "model content" not in message
    assert "Choose another output folder" in message
    assert (tmp_path / "run.json").read_bytes() == before
    with run_directory(tmp_path) as run:
        assert run.finished


def test_another_output_format_is_another_run(tmp_path):
    finish(tmp_path)
    with pytest.raises(OutputError, match="output format: parquet there, npy now"):
        run_directory(tmp_path, output_format=OutputFormat.NPY)


def test_the_format_chooses_the_sink_and_its_rows_are_counted(tmp_path):
    finish(tmp_path / "npy", output_format=OutputFormat.NPY)
    assert record_of(tmp_path / "npy")["counts"]["rows"] == 2
    with run_directory(tmp_path / "npy", output_format=OutputFormat.NPY) as run:
        assert run.finished
        assert type(open_sink(run)) is NpySink
    with run_directory(tmp_path / "parquet") as run:
        assert type(open_sink(run)) is ParquetSink


def test_masks_as_npy_are_refused_before_anything_is_created(tmp_path):
    segment = ModelSpec(name="toy", task=Task.SEGMENT, preprocess=SPEC.preprocess)
    with pytest.raises(UsageError):
        run_directory(tmp_path / "out", spec=segment, output_format=OutputFormat.NPY)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"holds files but no run.json.*'holiday.jpg'"):
        run_directory(tmp_path)
    assert os.listdir(tmp_path) == ["holiday.jpg"]


def test_a_file_or_a_dead_link_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        with pytest.raises(OutputError, match="is not a folder"):
            run_directory(tmp_path / name)


def test_a_folder_of_a_run_killed_before_its_first_record_is_taken_up(tmp_path):
    (tmp_path / ".lock").write_text("1234")
    (tmp_path / ".tmp-run.json").write_text("{")
    finish(tmp_path)
    assert record_of(tmp_path)["status"] == "finished"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format_version": 1}'])
def test_a_record_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(OutputError, match=r"run.json is not readable"):
        run_directory(tmp_path)


def test_a_record_of_another_format_version_is_refused(tmp_path):
    finish(tmp_path)
    record = record_of(tmp_path) | {"format_version": 99, "vdali_version": "9.9"}
    (tmp_path / "run.json").write_text(json.dumps(record))
    with pytest.raises(OutputError, match=r"written by vdali 9.9 in format 99"):
        run_directory(tmp_path)


def test_a_second_process_is_kept_out_until_the_first_ends(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from pathlib import Path
from test_run_dir import run_directory
with run_directory(Path({str(tmp_path)!r})) as run:
    run.start({{}})
    print("locked", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(OutputError, match=rf"being written by another process \(id {other.pid}\)"):
            run_directory(tmp_path)
        other.send_signal(signal.SIGKILL)
    with run_directory(tmp_path) as run:
        assert not run.finished
        run.start({})
        run.finish(RunStatus.INTERRUPTED)
    assert [session["status"] for session in record_of(tmp_path)["sessions"]] == ["killed", "interrupted"]


def test_the_lock_is_given_back_when_the_run_is_refused(tmp_path):
    finish(tmp_path)
    with pytest.raises(OutputError):
        run_directory(tmp_path, {"precision": "int8"})
    run_directory(tmp_path).close()


def test_a_run_left_by_an_error_is_marked_failed(tmp_path):
    def fail() -> None:
        with run_directory(tmp_path) as run:
            run.start({})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert record_of(tmp_path)["status"] == "failed"
    assert record_of(tmp_path)["sessions"][0]["status"] == "failed"


def test_an_error_in_a_later_session_keeps_what_the_earlier_one_recorded(tmp_path):
    finish(tmp_path, failures=[Failure("c", "read", "timeout", "slow", True)])
    run = run_directory(tmp_path)
    run.start({})
    run.__exit__(None, None, None)
    record = record_of(tmp_path)
    assert (record["status"], record["used"], record["counts"]["inputs"]) == ("failed", {"decoder": "turbo"}, 2)


def test_a_run_that_never_started_leaves_no_record(tmp_path):
    with run_directory(tmp_path):
        pass
    assert os.listdir(tmp_path) == [".lock"]


def test_inputs_whose_path_is_not_utf8_are_recorded_and_recognised(tmp_path):
    parts = {**PARTS, "inputs": os.fsdecode(b"/photos/caf\xe9")}
    finish(tmp_path, parts=parts)
    with run_directory(tmp_path, parts) as run:
        assert run.finished


def test_an_out_that_cannot_be_created_says_so(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"/file is not a folder"):
        run_directory(tmp_path / "file" / "out")
