"""Picks the backend for a model file and a device, says which, and never takes another silently."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..errors import DeviceError, ModelError, UsageError
from ..gpu_probe import Gpu, GpuProbe, probe_gpu
from ..plans.sidecar import PLAN_SUFFIX, REFUSED
from .interface import Engine
from .tensorrt import TensorRTEngine, TensorRTOptions

if TYPE_CHECKING:
    from ..cuda.device import CudaDevice

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine and why this one: ``reason`` is a sentence for people, ``ordinal`` the GPU's (None: the CPU).

    ``fell_back``: it runs on the CPU although a GPU is here, which a long run should hear at its start.
    """

    engine: Engine
    reason: str
    ordinal: int | None = None
    fell_back: bool = False


@dataclass(frozen=True, slots=True)
class PlanSearch:
    """A plan that was found for an ONNX file and a GPU, or None; ``why`` says which it is, or why there is none."""

    plan: Path | None
    why: str


FindPlan = Callable[[Path, Gpu], PlanSearch]


def load_engine(
    model: Path | str,
    *,
    device: str = "auto",
    threads: int = 1,
    find_plan: FindPlan | None = None,
    tensorrt: TensorRTOptions | None = None,
) -> LoadedEngine:
    """Engine for an exported ONNX file, or for a TensorRT plan, on ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    ``auto`` takes the first GPU where there is one that works, else the CPU. On a GPU an ONNX file runs as the plan
    that ``find_plan`` gives, else on ONNX Runtime's CUDA provider. Raises ModelError for an unusable file, DeviceError
    when the device asked for, or what it needs, is missing, and UsageError for words that make no sense.
    """
    path = Path(model)
    if not path.is_file():
        raise ModelError(f"No model file at {path}. Give an ONNX file that `vdali export` wrote, or a known name.")
    wanted = _Wanted(path, device, threads, find_plan, tensorrt or TensorRTOptions())
    if path.suffix == PLAN_SUFFIX:
        return _given_plan(wanted)
    gpus, ordinal, reason = _resolve(device)
    if ordinal is None:
        return _on_cpu(wanted, reason)
    try:
        return _on_gpu(wanted, gpus, ordinal, reason)
    except DeviceError as error:
        if device != "auto":
            raise
        return replace(
            _on_cpu(wanted, f"auto: the CPU, since {gpus.gpus[ordinal].name} cannot be used. {error}"), fell_back=True
        )


@dataclass(frozen=True, slots=True)
class _Wanted:
    path: Path
    device: str
    threads: int
    find_plan: FindPlan | None
    tensorrt: TensorRTOptions


def _given_plan(wanted: _Wanted) -> LoadedEngine:
    from ..plans.check import open_plan

    if wanted.device == "cpu":
        raise UsageError(
            f"{wanted.path} is a TensorRT plan, which runs on a GPU only. Use the ONNX file that it was built from, or "
            "leave --device out."
        )
    state = open_plan(wanted.path).state  # a file that is no plan is told before a GPU that is missing
    if state.startswith(REFUSED):
        raise ModelError(f"The plan {wanted.path} was {state}. Build it again, or use the ONNX file it was built from.")
    gpus, ordinal, reason = _resolve(wanted.device)
    if ordinal is None:
        raise DeviceError(
            f"{wanted.path} is a TensorRT plan, which runs on a GPU only: {gpus.reason}. Use the ONNX file that it was "
            "built from, or run `vdali doctor`."
        )
    engine = load_plan(wanted.path, ordinal=ordinal, options=wanted.tensorrt)
    return LoadedEngine(engine, f"{reason}; the plan was given ({state})", ordinal)


def _on_cpu(wanted: _Wanted, reason: str) -> LoadedEngine:
    from .onnxruntime import OnnxRuntimeEngine

    return LoadedEngine(OnnxRuntimeEngine(wanted.path, threads=wanted.threads), reason)


def _on_gpu(wanted: _Wanted, gpus: GpuProbe, ordinal: int, reason: str) -> LoadedEngine:
    from .onnxruntime_cuda import OnnxRuntimeCudaEngine

    found = wanted.find_plan(wanted.path, gpus.gpus[ordinal]) if wanted.find_plan is not None else None
    why = found.why if found is not None else ""
    if found is not None and found.plan is not None:
        try:
            engine = load_plan(found.plan, ordinal=ordinal, options=wanted.tensorrt)
            return LoadedEngine(engine, f"{reason}; {found.why}", ordinal)
        except (ModelError, DeviceError) as error:
            why = f"its plan cannot be used: {error}"
    fallback = _with_device(ordinal, lambda device: OnnxRuntimeCudaEngine(wanted.path, device))
    return LoadedEngine(fallback, f"{reason}; no TensorRT: {why}" if why else reason, ordinal)


def load_plan(path: Path, *, ordinal: int = 0, options: TensorRTOptions | None = None) -> TensorRTEngine:
    """A plan on the GPU ``ordinal``, whether somebody has proven it or not.

    Raises ModelError for a plan that cannot be used here, and DeviceError where its TensorRT or the GPU is missing.
    """
    from ..plans.check import open_plan
    from ..plans.flavour import load_flavour

    sidecar = open_plan(path)
    flavour = load_flavour(sidecar.key.flavour)
    gpus = probe_gpu()

    def make(device: CudaDevice) -> TensorRTEngine:
        gpu = gpus.gpus[ordinal]
        return TensorRTEngine(path, device, sidecar=sidecar, flavour=flavour, gpu=gpu, options=options)

    return _with_device(ordinal, make)


def _with_device(ordinal: int, make: Callable[[CudaDevice], E]) -> E:
    """What ``make`` gives on a device that it then owns."""
    from ..cuda.device import CudaDevice

    device = CudaDevice(ordinal)
    try:
        return make(device)
    except BaseException:
        device.close()
        raise


def _resolve(device: str) -> tuple[GpuProbe, int | None, str]:
    """What the machine has, the GPU's ordinal (None: CPU), and the reason."""
    if device == "cpu":
        return GpuProbe(), None, "cpu was asked for"
    match = re.fullmatch(r"auto|cuda(?::(\d+))?", device)
    if match is None:
        raise UsageError(f"No device '{device}'. Use auto, cpu, cuda or cuda:N.")
    gpus = probe_gpu()
    if device == "auto":
        return (gpus, 0, "auto: a GPU was found") if gpus.count else (gpus, None, f"auto: {gpus.reason}")
    ordinal = int(match.group(1) or 0)
    if ordinal >= gpus.count:
        have = f"the last GPU here is cuda:{gpus.count - 1}" if gpus.count else gpus.reason
        raise DeviceError(f"No device '{device}': {have}. Use --device cpu, or run `vdali doctor`.")
    return gpus, ordinal, f"{device} was asked for"
