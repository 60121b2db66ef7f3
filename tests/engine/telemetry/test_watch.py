"""Telemetry of real runs and processes; NVML is the real binding over a stand-in for the driver's library."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest
from vdali.engine.errors import UsageError
from vdali.engine.sinks.run_dir import TELEMETRY_FILE
from vdali.engine.stages import StageTime
from vdali.engine.telemetry import watch as telemetry_module
from vdali.engine.telemetry.file import TelemetryFile, read_telemetry
from vdali.engine.telemetry.gpu import open_gpu_sampler
from vdali.engine.telemetry.host import HostSampler, _busy
from vdali.engine.telemetry.watch import Counts, Telemetry, TelemetryOptions

QUICK = TelemetryOptions(interval_s=0.02, write_s=0.05)
HAS_DRIVER = open_gpu_sampler()[0] is not None
without_driver = pytest.mark.skipif(HAS_DRIVER, reason="this machine has an NVIDIA driver")


class Progress:
    """A run that gets on by ten rows whenever it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> Counts:
        self.asked += 1
        stages = {"decode": StageTime(0.5 * self.asked, 0.25 * self.asked, self.asked)}
        return Counts(10 * self.asked, self.asked // 3, stages)


def lines_of(path: Path) -> list[dict]:
    return read_telemetry(path).to_pylist()


def watch(path: Path | None, seconds: float = 0.2, **keywords) -> Telemetry:
    with Telemetry(path, options=keywords.pop("options", QUICK), **keywords) as telemetry:
        time.sleep(seconds)
    return telemetry


def test_a_watched_run_leaves_one_line_for_each_interval(tmp_path):
    telemetry = watch(tmp_path / TELEMETRY_FILE, counts=Progress(), session=3)
    lines = lines_of(tmp_path / TELEMETRY_FILE)
    assert 3 <= len(lines) == telemetry.taken
    assert {line["session"] for line in lines} == {3}
    assert [line["rows"] for line in lines] == [10 * (i + 1) for i in range(len(lines))]
    assert dict(lines[1]["stage_wall_s"]) == {"decode": 1.0}
    assert dict(lines[1]["stage_cpu_s"]) == {"decode": 0.5}
    elapsed = [line["elapsed_s"] for line in lines]
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] >= 0.2
    assert all(len(line["cpu_busy"]) == os.cpu_count() for line in lines)
    assert all(0 <= share <= 1 for line in lines for share in [*line["cpu_busy"], line["cpu_iowait"]])


def test_any_parquet_reader_sees_plain_columns_with_units(tmp_path):
    watch(tmp_path / TELEMETRY_FILE)
    table = pq.read_table(tmp_path / TELEMETRY_FILE)
    assert {"time", "elapsed_s", "process_rss_bytes", "cpu_busy", "disk_read_bytes", "gpus"} <= set(table.column_names)
    moment = table["time"][0].as_py()
    assert abs(moment.timestamp() - time.time()) < 60
    assert moment.utcoffset().total_seconds() == 0


def test_a_run_that_is_shorter_than_the_interval_is_seen_once(tmp_path):
    telemetry = watch(tmp_path / TELEMETRY_FILE, seconds=0.01, options=TelemetryOptions())
    assert telemetry.taken == len(lines_of(tmp_path / TELEMETRY_FILE)) == 1


def test_cpu_time_memory_and_bytes_are_those_of_the_process(tmp_path):
    data = tmp_path / "data"
    data.write_bytes(os.urandom(1 << 20))
    with Telemetry(None, options=QUICK) as telemetry:
        started = time.process_time()
        while time.process_time() - started < 0.3:
            sum(range(1000))
        for _ in range(3):
            data.read_bytes()
        held = b"x" * (64 << 20)
        time.sleep(0.1)
        del held
    last = telemetry.samples[-1].host
    assert 0.25 <= last.process_cpu_s <= 1.0
    assert 3 << 20 <= last.process_requested_bytes < 16 << 20
    assert max(sample.host.process_rss_bytes for sample in telemetry.samples) > 64 << 20
    assert last.process_threads >= 2


class Times(NamedTuple):
    """Seconds of one CPU, as psutil has them on Linux."""

    user: float
    nice: float
    system: float
    idle: float
    iowait: float


@pytest.mark.parametrize(
    ("now", "busy"),
    [
        (Times(1, 0, 0, 3, 0), 0.25),
        (Times(0, 0, 0, 2, 2), 0.0),
        (Times(1, 2, 1, 0, 0), 1.0),
        (Times(0, 0, 0, 0, 0), 0.0),
        (Times(3, 0, 1, -1, 0), 1.0),
    ],
)
def test_a_cpu_is_busy_when_it_neither_idles_nor_waits_for_a_disk(now, busy):
    assert _busy(Times(0, 0, 0, 0, 0), now) == pytest.approx(busy)


def test_a_killed_run_keeps_the_lines_up_to_its_last_write(tmp_path):
    path = tmp_path / TELEMETRY_FILE
    script = (
        "import sys, time; from pathlib import Path; from vdali.engine.telemetry.watch import *\n"
        "with Telemetry(Path(sys.argv[1]), options=TelemetryOptions(interval_s=0.01, write_s=0.05)): time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, path]) as process:
        deadline = time.monotonic() + 30
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    assert len(lines_of(path)) >= 1


def test_a_resumed_run_adds_its_session_to_the_lines_before(tmp_path):
    path = tmp_path / TELEMETRY_FILE
    watch(path, session=1)
    before = lines_of(path)
    watch(path, session=2)
    after = lines_of(path)
    assert after[: len(before)] == before
    assert {line["session"] for line in after[len(before) :]} == {2}


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nonsense PAR1", None])
def test_a_file_that_is_no_telemetry_is_set_aside_and_the_run_goes_on(tmp_path, content):
    path = tmp_path / TELEMETRY_FILE
    if content is None:
        import pyarrow as pa

        pq.write_table(pa.table({"session": [1], "other": [2]}), path)
    else:
        path.write_bytes(content)
    original = path.read_bytes()
    telemetry = watch(path)
    assert len(lines_of(path)) == telemetry.taken
    assert any("not readable" in note for note in telemetry.notes)
    assert (tmp_path / "telemetry.unreadable.parquet").read_bytes() == original


def test_what_cannot_be_written_is_said_once_and_the_run_goes_on(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with Telemetry(folder / TELEMETRY_FILE, options=QUICK) as telemetry:
        shutil.rmtree(folder)
        time.sleep(0.4)
    assert telemetry.taken > 5
    assert sum("Cannot write" in note for note in telemetry.notes) == 1


def test_when_the_lines_are_full_every_second_goes_and_the_interval_doubles(tmp_path, monkeypatch):
    monkeypatch.setattr(telemetry_module, "MAX_SAMPLES", 8)
    for path in (tmp_path / TELEMETRY_FILE, None):
        telemetry = watch(path, seconds=0.5, options=TelemetryOptions(interval_s=0.01, write_s=0.02), counts=Progress())
        assert telemetry.interval_s >= 0.02
        if path is not None:
            lines = lines_of(path)
            assert len(lines) < telemetry.taken
            rows = [line["rows"] for line in lines]
        else:
            rows = [sample.rows for sample in telemetry.samples]
        assert len(rows) < 8
        assert rows == sorted(set(rows))
        assert rows[-1] == 10 * telemetry.taken


@pytest.mark.parametrize("error", [NotImplementedError("no /proc/diskstats"), PermissionError("hidden")])
def test_a_machine_that_hides_its_disks_has_all_other_telemetry(monkeypatch, error):
    def hidden() -> None:
        raise error

    monkeypatch.setattr("psutil.disk_io_counters", hidden)
    sample = HostSampler().sample()
    assert sample.disk_read_bytes is None
    assert sample.process_rss_bytes > 0


def test_a_look_at_the_host_takes_less_than_a_thousandth_of_a_second_of_cpu():
    sampler = HostSampler()
    costs = []
    for _ in range(100):
        started = time.thread_time()
        sampler.sample()
        costs.append(time.thread_time() - started)
    assert min(costs) < 1e-3  # at one look a second: 0.1 % of a CPU


def test_the_file_is_written_so_seldom_that_it_takes_a_thousandth_of_the_time(tmp_path, monkeypatch):
    written = []
    write = TelemetryFile.write

    def counted(self, samples) -> None:
        started = time.thread_time()
        write(self, samples)
        written.append(time.thread_time() - started)

    monkeypatch.setattr(TelemetryFile, "write", counted)
    seconds = 1.5
    watch(tmp_path / TELEMETRY_FILE, seconds, options=TelemetryOptions(interval_s=0.01, write_s=0.0))
    assert len(written) >= 2
    assert sum(written[:-2]) <= 1e-3 * seconds  # the last but one may have begun its pause, the last ends the run


@without_driver
def test_without_a_driver_the_cpu_part_is_there_and_the_missing_part_is_said_once(tmp_path):
    telemetry = watch(tmp_path / TELEMETRY_FILE)
    assert [note for note in telemetry.notes if "GPU" in note] == telemetry.notes
    assert len(telemetry.notes) == 1
    assert "libnvidia-ml.so.1" in telemetry.notes[0]
    assert all(line["gpus"] == [] for line in lines_of(tmp_path / TELEMETRY_FILE))
    assert telemetry.to_json()["notes"] == telemetry.notes


def test_lines_of_json_go_to_the_stream(tmp_path):
    stream = io.StringIO()
    telemetry = watch(None, counts=Progress(), options=TelemetryOptions(interval_s=0.02, stream=stream))
    documents = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(documents) == telemetry.taken
    assert documents[0]["rows"] == 10
    assert documents[0]["stage_wall_s"] == {"decode": 0.5}
    assert abs(documents[0]["time_s"] - time.time()) < 60


def test_a_reader_of_the_lines_that_goes_away_is_noted_and_the_run_goes_on():
    stream = io.StringIO()
    with Telemetry(None, options=TelemetryOptions(interval_s=0.02, stream=stream)) as telemetry:
        time.sleep(0.1)
        stream.close()
        time.sleep(0.1)
    assert telemetry.taken >= 3
    assert sum("lines ended" in note for note in telemetry.notes) == 1


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan")])
def test_an_interval_that_is_not_above_zero_is_refused(interval_s):
    with pytest.raises(UsageError, match="> 0"):
        Telemetry(None, options=TelemetryOptions(interval_s=interval_s))
