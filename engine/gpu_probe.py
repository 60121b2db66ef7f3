"""Which GPUs this process can use through CUDA, and why not.

A missing driver shows itself in many ways: NVML raises, the CUDA runtime returns 'insufficient driver', the CUDA
driver API raises, or the packages themselves do not import. All end here as one sentence. Asking creates no CUDA
context, but it does start the driver library, so a process must not fork afterwards and use CUDA in the child.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

MINIMUM_DRIVER = "580"
"""First driver branch for CUDA 13, for which ONNX Runtime and cuda-python are built (NVIDIA, CUDA compatibility)."""

INSTALL_DRIVER = (
    f"Install an NVIDIA driver >= {MINIMUM_DRIVER} (in a container: start it with --gpus all), or use --device cpu."
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its name, memory in bytes, and compute capability such as ``9.0``."""

    name: str
    memory_bytes: int
    compute_capability: str


@dataclass(frozen=True, slots=True)
class GpuProbe:
    """What was found: ``gpus[n]`` is ``cuda:n`` and usable.

    ``driver`` is the driver's version and ``cuda`` the newest CUDA version that it supports, both empty where unknown.
    ``seen`` names the GPUs that the driver knows, usable or not. Without a usable GPU ``reason`` says why and
    ``advice`` what to do; with one both are empty.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    seen: tuple[str, ...] = ()
    reason: str = ""
    advice: str = ""

    @property
    def count(self) -> int:
        return len(self.gpus)


@dataclass(frozen=True, slots=True)
class _Nvml:
    """What the management library tells; ``error`` is empty when it works."""

    driver: str = ""
    seen: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Cuda:
    """What the CUDA runtime tells.

    ``too_old`` is a driver older than the runtime that vdali's packages carry, ``absent`` a runtime that could not be
    asked since its package does not import.
    """

    gpus: tuple[Gpu, ...] = ()
    version: str = ""
    error: str = ""
    too_old: bool = False
    absent: bool = False


def probe_gpu() -> GpuProbe:
    """GPUs of this process, or the reason that there is none. Never raises for anything missing."""
    nvml = _ask_nvml()
    cuda = _ask_cuda()
    reason, advice = ("", "") if cuda.gpus else _explain(nvml, cuda)
    return GpuProbe(cuda.gpus, nvml.driver, cuda.version, nvml.seen, reason, advice)


def _explain(nvml: _Nvml, cuda: _Cuda) -> tuple[str, str]:
    """Reason and advice for a machine where CUDA has no usable GPU."""
    if cuda.absent:
        return f"GPUs cannot be asked for: {cuda.error}", "pip install 'cuda-python>=13,<14', or use --device cpu."
    both = f"NVML: {nvml.error or f'driver {nvml.driver}'}; CUDA: {cuda.error}"
    if nvml.error and not cuda.version:
        return f"no NVIDIA driver ({both})", INSTALL_DRIVER
    if cuda.too_old:
        return f"the NVIDIA driver is too old ({both})", f"Update it to >= {MINIMUM_DRIVER}, or use --device cpu."
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if nvml.seen and hidden is not None:
        return f"CUDA can use no GPU with CUDA_VISIBLE_DEVICES='{hidden}' ({both})", "Unset or correct that variable."
    if nvml.seen:
        return (
            f"the driver sees {', '.join(nvml.seen)}, but CUDA cannot use it ({both})",
            "In a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility; after a driver update restart the machine.",
        )
    return f"no usable NVIDIA GPU ({both})", "Check the driver with nvidia-smi, or use --device cpu."


def _ask_nvml() -> _Nvml:
    try:
        import pynvml
    except ImportError as error:
        return _Nvml(error=f"the Python package nvidia-ml-py cannot be imported ({error})")
    return _facts_of_nvml(pynvml)


def _facts_of_nvml(pynvml: Any) -> _Nvml:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return _Nvml(error="libnvidia-ml.so.1 is not found")
    except pynvml.NVMLError as error:
        return _Nvml(error=str(error))
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return _Nvml(driver, tuple(pynvml.nvmlDeviceGetName(handle) for handle in handles))
    except pynvml.NVMLError as error:
        return _Nvml(error=str(error))
    finally:
        pynvml.nvmlShutdown()


def _ask_cuda() -> _Cuda:
    try:
        from cuda.bindings import runtime

        return _facts_of_cuda(runtime)
    except ImportError as error:
        return _Cuda(error=f"the Python package cuda-python cannot be imported ({error})", absent=True)
    except RuntimeError as error:  # DynamicLibNotFoundError and a function that the driver lacks
        return _Cuda(error=str(error))


def _facts_of_cuda(runtime: Any) -> _Cuda:
    version = runtime.cudaDriverGetVersion()[1]
    if not version:
        return _Cuda(error="libcuda.so.1 is not found")
    status, count = runtime.cudaGetDeviceCount()
    success = runtime.cudaError_t.cudaSuccess
    if status != success:
        return _Cuda(
            version=_dotted(version),
            error=_text_of(runtime, status),
            too_old=status == runtime.cudaError_t.cudaErrorInsufficientDriver,
        )
    gpus = []
    for ordinal in range(count):
        status, properties = runtime.cudaGetDeviceProperties(ordinal)
        if status != success:
            return _Cuda(version=_dotted(version), error=f"cuda:{ordinal}: {_text_of(runtime, status)}")
        gpus.append(_gpu_of(properties))
    return _Cuda(tuple(gpus), _dotted(version), "" if gpus else "no device")


def _gpu_of(properties: Any) -> Gpu:
    return Gpu(
        name=properties.name.rstrip(b"\0").decode(errors="replace"),
        memory_bytes=int(properties.totalGlobalMem),
        compute_capability=f"{properties.major}.{properties.minor}",
    )


def _text_of(runtime: Any, status: Any) -> str:
    _, name = runtime.cudaGetErrorName(status)
    _, text = runtime.cudaGetErrorString(status)
    return f"{name.decode()}, {text.decode()}"


def _dotted(version: int) -> str:
    """``13.0`` for CUDA's number 13000."""
    return f"{version // 1000}.{version % 1000 // 10}"
