"""The command watches each run: OUT/telemetry.parquet, lines of JSON, metrics for Prometheus."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
import urllib.request
from pathlib import Path

from commands import DEADLINE_S, ids_of, record_of, run_vdali, start_vdali, status_of
from prometheus import values_of
from vdali.engine.sinks.run_dir import TELEMETRY_FILE
from vdali.engine.telemetry.file import read_telemetry
from vdali.engine.telemetry.host import HostSampler


def lines_of(out: Path) -> list[dict]:
    return read_telemetry(out / TELEMETRY_FILE).to_pylist()


def test_every_session_of_a_run_leaves_its_lines_in_out(vdali, tmp_path, model, pictures):
    out = tmp_path / "out"
    assert vdali("run", pictures, "-m", model, "-o", out, "--limit", 10).status == 0
    assert vdali("run", pictures, "-m", model, "-o", out).status == 0
    lines = lines_of(out)
    assert sorted({line["session"] for line in lines}) == [1, 2]
    last = {line["session"]: line for line in lines}
    assert (last[1]["rows"], last[1]["failures"]) == (9, 1)
    assert (last[2]["rows"], last[2]["failures"]) == (20, 0)
    assert dict(last[2]["stage_cpu_s"]).keys() == {"read", "decode", "infer"}
    for number, session in enumerate(record_of(out)["sessions"], start=1):
        assert session["telemetry"]["samples"] == sum(line["session"] == number for line in lines)


def test_telemetry_as_lines_of_json_is_all_that_reaches_stdout(tmp_path, model, pictures):
    ended = run_vdali("run", pictures, "-m", model, "-o", tmp_path / "out", "--telemetry", "jsonl")
    assert ended.returncode == 0
    documents = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(documents) == len(lines_of(tmp_path / "out"))
    assert (documents[-1]["rows"], documents[-1]["failures"]) == (29, 1)
    assert "29 rows, 1 failures in all" in ended.stderr


def test_a_reader_of_the_lines_that_goes_away_does_not_end_the_run(tmp_path, model, pictures):
    readable, writable = os.pipe()
    os.close(readable)
    with os.fdopen(writable, "w") as stdout:
        words = ("run", pictures, "-m", model, "-o", tmp_path / "out", "--telemetry", "jsonl")
        with start_vdali(*words, stdout=stdout) as process:
            said = process.stderr.read()
    assert process.returncode == 0, said
    assert "telemetry lines ended: " in said
    assert len(ids_of(tmp_path / "out")) == 29


def test_prometheus_reads_how_far_a_run_is(tmp_path, model, pictures):
    (tmp_path / "in").mkdir()
    for number in range(20_000):
        (tmp_path / "in" / f"{number:05d}.png").symlink_to(pictures / "0001.png")
    words = ("run", tmp_path / "in", "-m", model, "-o", tmp_path / "out", "--metrics-port", 0)
    with start_vdali(*words) as process:
        address = re.fullmatch(r"metrics at (http://127\.0\.0\.1:\d+/metrics)\n", process.stderr.readline())[1]
        until = time.monotonic() + DEADLINE_S
        text = ""
        while not re.search(r"vdali_rows_total [1-9]", text) and time.monotonic() < until:
            time.sleep(0.05)
            with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
                text = answer.read().decode()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert values_of(text)["vdali_rows_total"]
    assert process.returncode == 130, said
    assert status_of(tmp_path / "out") == "interrupted"


def test_a_port_that_is_taken_is_status_2_and_the_same_folder_can_be_used_afterwards(vdali, tmp_path, model, pictures):
    words = ("run", pictures, "-m", model, "-o", "out")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = vdali(*words, "--metrics-port", taken.getsockname()[1])
    assert ended.status == 2
    assert "Metrics cannot be served at 127.0.0.1:" in ended.err
    assert not (tmp_path / "out" / "run.json").exists()
    assert vdali(*words).status == 0


def test_a_sampler_that_fails_does_not_end_the_run(vdali, tmp_path, model, pictures, monkeypatch):
    def fail(self):
        raise RuntimeError("no /proc here")

    monkeypatch.setattr(HostSampler, "sample", fail)
    ended = vdali("run", pictures, "-m", model, "-o", "out", "--json")
    assert ended.status == 0
    assert ended.err.count("telemetry ended after 0 samples: RuntimeError: no /proc here") == 1
    assert json.loads(ended.out)["session"]["telemetry"]["samples"] == 0
