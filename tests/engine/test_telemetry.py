"""Telemetry of real runs and processes; NVML is the real binding over a stand-in for the driver's library."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest
from vdali.engine import telemetry as telemetry_module
from vdali.engine.errors import UsageError
from vdali.engine.stages import StageTime
from vdali.engine.telemetry import TELEMETRY_FILE, Counts, Telemetry, TelemetryOptions
from vdali.engine.telemetry_file import TelemetryFile, read_telemetry
from vdali.engine.telemetry_gpu import open_gpu_sampler
from vdali.engine.telemetry_host import HostSampler, _busy
from vdali.engine.telemetry_metrics import metrics_text

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
        "import sys, time; from pathlib import Path; from vdali.engine.telemetry import *\n"
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


def get(port: int, path: str = "/metrics") -> tuple[str, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


SAMPLE_LINE = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)(\{[a-z]+="(?:[^"\\]|\\.)*"(?:,[a-z]+="(?:[^"\\]|\\.)*")*\})? (\S+)')


def values_of(text: str) -> dict[str, float]:
    """Values by series; fails where a line is not in Prometheus' text format or a name has no TYPE before it."""
    values: dict[str, float] = {}
    typed: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            assert line.split()[3] in {"counter", "gauge"}
            assert line.split()[2] not in typed
            typed.add(line.split()[2])
        elif not line.startswith("# HELP "):
            match = SAMPLE_LINE.fullmatch(line)
            assert match, line
            assert match[1] in typed
            values[match[1] + (match[2] or "")] = float(match[3])
    return values


def test_prometheus_reads_counters_that_rise_and_gauges():
    options = TelemetryOptions(interval_s=0.02, metrics_port=0)
    with Telemetry(None, counts=Progress(), options=options) as telemetry:
        time.sleep(0.1)
        kind, text = get(telemetry.metrics_port)
        time.sleep(0.1)
        later = values_of(get(telemetry.metrics_port)[1])
    values = values_of(text)
    assert kind.startswith("text/plain; version=0.0.4")
    assert 0 < values["vdali_rows_total"] < later["vdali_rows_total"]
    assert values['vdali_stage_seconds_total{stage="decode",clock="wall"}'] >= 0.5
    assert values["vdali_process_resident_memory_bytes"] > 1 << 20
    assert 'vdali_cpu_busy_ratio{cpu="0"}' in values


def test_metrics_are_served_on_this_machine_alone_and_nowhere_else_than_at_metrics():
    with Telemetry(None, options=TelemetryOptions(metrics_port=0)) as telemetry:
        assert get(telemetry.metrics_port)[1] == ""  # nothing was looked at yet
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(telemetry.metrics_port, "/run.json")
        listening = Path("/proc/net/tcp").read_text()
        assert f"0100007F:{telemetry.metrics_port:04X}" in listening
        assert f"00000000:{telemetry.metrics_port:04X}" not in listening


def test_a_port_that_is_taken_or_impossible_is_a_usage_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port in (taken.getsockname()[1], 70000):
            with (
                pytest.raises(UsageError, match="another port"),
                Telemetry(None, options=TelemetryOptions(metrics_port=port)),
            ):
                pass


def test_a_client_that_never_sends_its_request_does_not_keep_the_run_from_ending():
    started = time.monotonic()
    with (
        Telemetry(None, options=TelemetryOptions(metrics_port=0)) as telemetry,
        socket.create_connection(("127.0.0.1", telemetry.metrics_port)) as client,
    ):
        client.sendall(b"GET /met")
        time.sleep(0.1)
    assert time.monotonic() - started < 3


NVML_SCRIPT = """
import dataclasses, json, time
from vdali.engine.telemetry import Telemetry, TelemetryOptions
from vdali.engine.telemetry_metrics import metrics_text
with Telemetry(None, options=TelemetryOptions(interval_s=0.02)) as telemetry:
    time.sleep(0.1)
sample = telemetry.samples[-1]
gpus = [dataclasses.asdict(gpu) for gpu in sample.gpus]
print(json.dumps({"gpus": gpus, "notes": telemetry.notes, "metrics": metrics_text(sample)}))
"""


@pytest.fixture(scope="module")
def nvml_folder(tmp_path_factory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml_stub.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


@pytest.fixture(scope="module")
def with_gpus(nvml_folder) -> dict:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(nvml_folder)}
    done = subprocess.run(
        [sys.executable, "-c", NVML_SCRIPT], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def test_a_gpu_is_sampled_in_si_units_with_this_process_s_part(with_gpus):
    assert with_gpus["gpus"][0] == {
        "index": 0,
        "name": "Stub A",
        "utilisation": 0.87,
        "memory_activity": 0.41,
        "memory_used_bytes": 5 << 30,
        "process_memory_bytes": 3 << 30,
        "process_utilisation": 0.6,
        "power_w": 312.5,
        "pcie_tx_bytes_per_s": 70_000_000,
        "pcie_rx_bytes_per_s": 900_000_000,
        "sm_clock_hz": 1_980_000_000,
        "memory_clock_hz": 2_619_000_000,
        "video_decoder_utilisation": 0.33,
        "jpeg_decoder_utilisation": None,
    }
    assert with_gpus["notes"] == []


def test_what_a_gpu_does_not_tell_is_none_and_the_rest_is_there(with_gpus):
    second = with_gpus["gpus"][1]
    assert second["name"] == 'Stub "B"'
    assert second["power_w"] == 312.5
    assert {second[key] for key in ("utilisation", "process_memory_bytes", "process_utilisation")} == {None}


def test_prometheus_gets_each_gpu_with_its_name_and_no_value_that_is_unknown(with_gpus):
    values = values_of(with_gpus["metrics"])
    assert values['vdali_gpu_utilisation_ratio{gpu="0",name="Stub A"}'] == 0.87
    assert values['vdali_gpu_power_watts{gpu="1",name="Stub \\"B\\""}'] == 312.5
    assert not any("jpeg" in series for series in values)
    assert 'vdali_gpu_utilisation_ratio{gpu="1",name="Stub \\"B\\""}' not in values


@pytest.mark.gpu
def test_a_real_gpu_tells_its_load_and_memory():
    with Telemetry(None, gpus=[0], options=QUICK) as telemetry:
        time.sleep(0.3)
    gpu = telemetry.samples[-1].gpus[0]
    assert telemetry.notes == []
    assert gpu.name
    assert gpu.memory_used_bytes > 0
    assert "vdali_gpu_memory_used_bytes" in metrics_text(telemetry.samples[-1])
