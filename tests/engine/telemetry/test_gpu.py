"""Telemetry of GPUs: the real NVML binding over a stand-in for the driver's library, and a real GPU where one is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus import values_of
from vdali.engine.telemetry.metrics import metrics_text
from vdali.engine.telemetry.watch import Telemetry, TelemetryOptions

NVML_SCRIPT = """
import dataclasses, json, time
from vdali.engine.telemetry.watch import Telemetry, TelemetryOptions
from vdali.engine.telemetry.metrics import metrics_text
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
    with Telemetry(None, gpus=[0], options=TelemetryOptions(interval_s=0.02)) as telemetry:
        time.sleep(0.3)
    gpu = telemetry.samples[-1].gpus[0]
    assert telemetry.notes == []
    assert gpu.name
    assert gpu.memory_used_bytes > 0
    assert "vdali_gpu_memory_used_bytes" in metrics_text(telemetry.samples[-1])
