"""Telemetry served to Prometheus."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus import values_of
from vdali.engine.errors import UsageError
from vdali.engine.stages import StageTime
from vdali.engine.telemetry.watch import Counts, Telemetry, TelemetryOptions


class Progress:
    """A run that gets on by ten rows whenever it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> Counts:
        self.asked += 1
        stages = {"decode": StageTime(0.5 * self.asked, 0.25 * self.asked, self.asked)}
        return Counts(10 * self.asked, self.asked // 3, stages)


def get(port: int, path: str = "/metrics") -> tuple[str, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


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
