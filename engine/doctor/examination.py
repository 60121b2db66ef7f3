"""The examination: asks every probe, looks at the machine, and comes to a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from .isolated import Answer, Probe
from .machine import machine_checks, package_version
from .report import Check, Report, Status, Verdict
from .runtimes import (
    TENSORRT,
    Answers,
    decoder_checks,
    export_checks,
    gpu_checks,
    has_gpu,
    runtime_checks,
)

PROBES: dict[str, tuple[str, ...]] = {
    "dali": ("decoder", "dali"),
    "gpu": ("gpu",),
    "onnxruntime": ("onnxruntime",),
    "turbo": ("decoder", "turbo"),
    "pillow": ("pillow",),
    "nvimgcodec": ("nvimgcodec",),
    "pillow_heif": ("package", "pillow_heif"),
    "pillow_jxl": ("package", "pillow_jxl"),
}
"""Probe and arguments by the name of its answer, the slowest first."""

DRIVER_PROBES: dict[str, tuple[str, ...]] = {"onnxruntime_cuda": ("onnxruntime_cuda",)}
"""Probes that load CUDA libraries: only with a usable GPU, since some crash without a driver."""

DECODERS = ("turbo", "dali", "pillow")


def examine() -> Report:
    """Look at this machine; takes a few seconds, never raises for anything missing or broken."""
    answers = _answers()
    checks = [
        *machine_checks(),
        *gpu_checks(answers["gpu"]),
        *runtime_checks(answers),
        *decoder_checks(answers),
        *export_checks(),
    ]
    return Report(tuple(checks), _verdict(checks, answers["gpu"]))


def _answers() -> Answers:
    running = {name: Probe(*words) for name, words in PROBES.items()}
    answers = {"gpu": running.pop("gpu").answer()}
    if has_gpu(answers["gpu"]):
        running |= {name: Probe(*words) for name, words in DRIVER_PROBES.items()}
        if package_version(*TENSORRT) is not None:
            running["tensorrt"] = Probe("package", "tensorrt")
    return answers | {name: probe.answer() for name, probe in running.items()}


def _verdict(checks: Sequence[Check], gpu: Answer) -> Verdict:
    """What ``--device auto`` takes, as load_engine decides it: the first GPU that works, else the CPU."""
    works = {
        check.name for check in checks if check.topic == "decoders" and check.status in {Status.OK, Status.WARNING}
    }
    decoders = tuple(name for name in DECODERS if name in works)
    if not has_gpu(gpu):
        return Verdict("cpu", gpu.error or gpu.facts["reason"], decoders)
    provider = next((check for check in checks if check.name == "CUDA provider"), None)
    if provider is None or provider.status is not Status.OK:
        found = "ONNX Runtime does not load" if provider is None else f"the CUDA provider: {provider.found}"
        return Verdict("cpu", f"{gpu.facts['gpus'][0]['name']} is here, but {found}", decoders)
    return Verdict("cuda:0", gpu.facts["gpus"][0]["name"], decoders)
