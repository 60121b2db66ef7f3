"""Picks the backend for a model file and a device, says which, and never takes another silently."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import DeviceError, ModelError, UsageError
from ..gpu_probe import probe_gpu
from .interface import Engine


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine and why this one: ``reason`` is a sentence for people."""

    engine: Engine
    reason: str


def load_engine(model: Path | str, *, device: str = "auto", threads: int = 1) -> LoadedEngine:
    """Engine for an exported ONNX file on ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises ModelError for an unusable file and DeviceError when the device asked for is missing.
    ``auto`` takes the first GPU where there is one, else the CPU.
    """
    path = Path(model)
    if not path.is_file():
        raise ModelError(f"No model file at {path}. Give an ONNX file that `vdali export` wrote, or a known name.")
    gpu, reason = _resolve(device)
    from .onnxruntime import OnnxRuntimeEngine

    engine = OnnxRuntimeEngine(path, threads=threads, gpu=gpu)
    return LoadedEngine(engine, reason)


def _resolve(device: str) -> tuple[int | None, str]:
    """GPU ordinal (None: CPU) and the reason."""
    if device == "cpu":
        return None, "cpu was asked for"
    match = re.fullmatch(r"auto|cuda(?::(\d+))?", device)
    if match is None:
        raise UsageError(f"No device '{device}'. Use auto, cpu, cuda or cuda:N.")
    gpus = probe_gpu()
    if device == "auto":
        return (0, "auto: a GPU was found") if gpus.count else (None, f"auto: {gpus.reason}")
    ordinal = int(match.group(1) or 0)
    if ordinal >= gpus.count:
        have = f"the last GPU here is cuda:{gpus.count - 1}" if gpus.count else gpus.reason
        raise DeviceError(f"No device '{device}': {have}. Use --device cpu, or run `vdali doctor`.")
    return ordinal, f"{device} was asked for"
