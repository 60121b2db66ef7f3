"""Files that a report is made of, as runs and benchmarks leave them, with values that are hard to show."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from vdali.benchmarks.bench_file import BENCH_VERSION
from vdali.benchmarks.comparison import ComparisonReport, Status, SystemRow
from vdali.benchmarks.cost import cost
from vdali.benchmarks.measure import Spread
from vdali.benchmarks.report.write import write_report
from vdali.engine.diagnosis.model import FORMAT_VERSION
from vdali.engine.sinks.run_dir import TELEMETRY_FILE
from vdali.engine.stages import StageTime
from vdali.engine.telemetry.file import TelemetryFile, TelemetrySample
from vdali.engine.telemetry.gpu import GpuSample
from vdali.engine.telemetry.host import HostSample

HOSTILE = """<script>document.title='run'</script><img src=x onerror="document.title='run'">"'&\\|`*_[x](y)"""
LONG = "a-very-long-name-without-any-space-" * 6


def spread(median: float) -> dict[str, float]:
    return {"min": 0.95 * median, "median": median, "max": 1.04 * median}


def gpu_sample(index: int, phase: float) -> GpuSample:
    busy = 0.75 + 0.2 * math.sin(phase)
    return GpuSample(
        index=index,
        name="NVIDIA H100 80GB HBM3",
        utilisation=busy,
        memory_activity=busy / 2,
        memory_used_bytes=12 << 30,
        process_memory_bytes=11 << 30,
        process_utilisation=busy,
        power_w=300 + 100 * busy,
        pcie_tx_bytes_per_s=80_000_000,
        pcie_rx_bytes_per_s=int(2e9 * busy),
        sm_clock_hz=1_980_000_000,
        memory_clock_hz=2_619_000_000,
        video_decoder_utilisation=0.0,
        jpeg_decoder_utilisation=busy / 3,
    )


def telemetry(out: Path, *, sessions: int = 2, lines: int = 400, gpus: int = 1) -> None:
    """A telemetry file of some sessions, one line a second."""
    for session in range(1, sessions + 1):
        file = TelemetryFile(out / TELEMETRY_FILE, session)
        samples = []
        for i in range(1, lines + 1):
            host = HostSample(
                cpu_busy=tuple(0.6 + 0.3 * math.sin(i / 20 + core) for core in range(8)),
                cpu_iowait=0.02 + 0.02 * math.sin(i / 7),
                process_cpu_s=5.5 * i,
                process_rss_bytes=(900 << 20) + 100_000 * i,
                process_threads=40,
                process_open_files=60,
                process_read_bytes=50_000_000 * i,
                process_write_bytes=1_000_000 * i,
                process_requested_bytes=51_000_000 * i,
                disk_read_bytes=50_000_000 * i,
                disk_write_bytes=int(2e6 * i + 1e7 * (i // 60)),
            )
            stages = {"decode": StageTime(4.0 * i, 4.0 * i, i), "infer": StageTime(1.0 * i, 1.0 * i, i)}
            seen = [gpu_sample(index, i / 15) for index in range(gpus)]
            rows = int(1900 * i + 300 * math.sin(i / 10))
            samples.append(TelemetrySample(session, 1.7e9 + i, float(i), rows, i // 50, stages, host, seen))
        file.write(samples)


def session(**changes: Any) -> dict[str, Any]:
    stages = {
        "read": {"wall_s": 40.0, "cpu_s": 10.0, "calls": 9000},
        "decode": {"wall_s": 1500.0, "cpu_s": 1450.0, "calls": 9000},
        "infer": {"wall_s": 420.0, "cpu_s": 60.0, "calls": 9000},
    }
    return {
        "status": "finished",
        "rows": 759_000,
        "failures": 1000,
        "elapsed_s": 400.0,
        "cpu_s": 1700.0,
        "sink_s": 31.0,
        "peak_rss_bytes": 1_300_000_000,
        "decoded_by": {"turbo": 750_000, "pillow": 9000},
        "stages": stages,
    } | changes


def run_folder(out: Path, **changes: Any) -> Path:
    """OUT of a run of two sessions on a GPU, with telemetry; texts of users are hostile or long."""
    out.mkdir(parents=True)
    record = {
        "format_version": 1,
        "vdali_version": "0.1.0",
        "status": "finished",
        "spec": {"preprocess": {"size": [224, 224]}},
        "used": {
            "engine": "tensorrt:NVIDIA H100",
            "reason": LONG,
            "decoder": "turbo",
            "model": HOSTILE,
            "weights": "random (seed 0)",
            "precision": "fp16",
            "batch_size": 64,
            "micro_batch": 64,
            "lanes": 8,
            "threads_per_lane": 1,
        },
        "counts": {
            "rows": 1_518_000,
            "failures": 2000,
            "failures_by_kind": {f"decode/{HOSTILE}": 1999, "read/gone": 1},
        },
        "environment": {
            "python": "3.11.7",
            "platform": "Linux-6.1-x86_64-with-glibc2.36",
            "cpu": "AMD EPYC 9654 96-Core Processor",
            "cpus_usable": 8,
            "packages": {"numpy": "2.4.6", "onnxruntime-gpu": "1.31.1"},
        },
        "sessions": [session(status="interrupted"), session()],
    } | changes
    (out / "run.json").write_text(json.dumps(record))
    telemetry(out)
    return out


def comparison(model: str = "mobilenetv3_small_100", *, torch_rate: float = 100.2) -> ComparisonReport:
    """A comparison in which one system is absent, one fails and one is wrong."""

    def of(rate: float) -> Spread:
        return Spread(0.95 * rate, rate, 1.04 * rate)

    numbers = {"cpu_ms": of(4.9), "latency_p50_s": 0.021, "latency_p99_s": 0.043, "peak_memory_bytes": 412_000_000}
    rows = (
        SystemRow("vdali", Status.OK, description="vdali, turbo, 2 lanes", throughput=of(398.0), **numbers),
        SystemRow(
            "torch",
            Status.OK,
            description="DataLoader with 2 workers, PIL, eager",
            throughput=of(torch_rate),
            ours_over_this=of(398.0 / torch_rate),
            lowest_cosine=0.99991,
            **numbers,
        ),
        SystemRow("dali-torch", Status.FAILED, note=f"no memory: {LONG}"),
        SystemRow("ray", Status.ABSENT, note="No module named 'ray'"),
        SystemRow("fast-but-wrong", Status.WRONG, note=HOSTILE, throughput=of(900.0), **numbers),
    )
    return ComparisonReport(
        model=model,
        task="embed",
        weights="random (seed 0)",
        images=400,
        input_bytes=400 * 52_000,
        batch_size=32,
        rounds=5,
        device="cpu",
        cpus=2,
        ours="vdali",
        reference="torch",
        rows=rows,
        resolution="224x224",
    )


def bench_document(*comparisons: ComparisonReport, **changes: Any) -> dict[str, Any]:
    """Comparisons, stages, and agreement by precision."""
    found = comparisons or (comparison(),)
    return {
        "bench_version": BENCH_VERSION,
        "environment": {"cpu": "AMD EPYC", "cpus_usable": 2},
        "comparisons": [report.to_json() for report in found],
        "stages": {"cpu_ms_per_sample": {"read": spread(0.05), "decode": spread(2.5), "infer": spread(2.1)}},
        "precisions": [
            {"precision": "fp32", "file_bytes": 10_200_000, "cosine_min": 1.0, "gate": "passed"},
            {"precision": "int8", "file_bytes": 2_700_000, "cosine_min": 0.9412, "gate": HOSTILE},
        ],
        "notes": ["torch ran with 2 workers"],
    } | changes


def sweep_document() -> dict[str, Any]:
    cells: list[dict[str, Any]] = []
    for precision, peak in (("fp32", 900.0), ("fp16", 1900.0), ("int8", 1990.0)):
        for step in range(9):
            batch = 2**step
            cell = {"precision": precision, "resolution": "224x224", "decoder": "turbo", "batch_size": batch}
            if precision == "fp32" and batch == 256:
                cells.append(cell | {"error": "out of memory"})
                continue
            rate = peak * batch / (batch + 6)
            plateau = batch == 64
            cells.append(
                cell
                | {"throughput_samples_per_s": rate, "latency_p50_s": batch / rate, "peak_gpu_bytes": batch << 24}
                | ({"plateau": True} if plateau else {})
                | ({"recommended": True} if plateau and precision == "fp16" else {})
            )
    return {
        "bench_version": BENCH_VERSION,
        "kind": "sweep",
        "model": "vit_small_patch16_224",
        "cells": cells,
        "reason": "int8 gains 1.05x only, and a batch of 128 less than 5 %",
    }


def diagnosis_document() -> dict[str, Any]:
    stage = {
        "wall_ms_per_sample": 2.4,
        "cpu_ms_per_sample": 2.4,
        "cpu_share": 0.62,
        "throughput_alone_samples_per_s": 412,
    }
    return {
        "format_version": FORMAT_VERSION,
        "kind": "diagnosis",
        "verdict": "input-bound: decode 412 images/s, engine 1,903; the engine idles 78 % of the time",
        "resource": "CPU",
        "stage": "decode",
        "throughput_samples_per_s": 405.0,
        "stages": [
            {"name": "read", **stage, "wall_ms_per_sample": 1.1, "cpu_ms_per_sample": 0.06},
            {"name": "decode", **stage},
            {"name": "host-to-device", "absent": "the engine runs on the CPU: nothing is copied"},
            {"name": "engine", **stage, "wall_ms_per_sample": 0.5, "cpu_ms_per_sample": 0.5},
        ],
        "advice": [
            {
                "change": "--decode fast",
                "options": {"decode": "fast"},
                "predicted_throughput_samples_per_s": 640.2,
                "predicted_gain": 1.58,
            },
            {"change": "2 more CPUs", "options": {}, "predicted_throughput_samples_per_s": 800, "predicted_gain": 2.0},
        ],
        "notes": ["reading an image took 1.1 ms the first time, and 0.06 ms again"],
        "settings": {"model": "vit", "lanes": 2},
    }


def report_pages(folder: Path) -> dict[str, Path]:
    """HTML reports that together have every kind of block."""
    out = run_folder(folder / "out")
    costs = cost(run=out, price_per_hour=2.5, images=250_000)
    run_page = write_report(out, folder / "run.html", cost=costs, diagnosis=diagnosis_document())
    sweep = {key: value for key, value in sweep_document().items() if key in ("cells", "reason")}
    bench = folder / "bench.json"
    bench.write_text(json.dumps(bench_document(sweep=sweep)))
    return {"run": run_page, "bench": write_report(bench, folder / "bench.html")}
