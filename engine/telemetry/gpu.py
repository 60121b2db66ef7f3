"""What NVIDIA GPUs do, asked from the driver through NVML; without a driver there is nothing to ask.

A value that a GPU or its driver does not tell (MIG, vGPU, an old driver) is None. Asking for PCIe throughput makes
NVML watch the bus for 20 ms, twice for each GPU: wall clock, hardly any CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")

_KILO = 1000
_MEGA = 1000**2


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One look at one GPU; ``index`` is NVML's, shares are 0..1 as the driver last averaged them.

    ``process_*`` are this process's part. In a container with a process namespace of its own the driver's process
    ids are the host's, and those values are None.
    """

    index: int
    name: str
    utilisation: float | None
    memory_activity: float | None
    memory_used_bytes: int | None
    process_memory_bytes: int | None
    process_utilisation: float | None
    power_w: float | None
    pcie_tx_bytes_per_s: int | None
    pcie_rx_bytes_per_s: int | None
    sm_clock_hz: int | None
    memory_clock_hz: int | None
    video_decoder_utilisation: float | None
    jpeg_decoder_utilisation: float | None


class GpuSampler:
    """Samples the GPUs of ``handles``; close it so that NVML is shut down."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._pid = os.getpid()
        self._handles = [
            (handle, int(nvml.nvmlDeviceGetIndex(handle)), str(nvml.nvmlDeviceGetName(handle))) for handle in handles
        ]
        self._seen_us = dict.fromkeys((index for _, index, _ in self._handles), 0)

    def sample(self) -> tuple[GpuSample, ...]:
        return tuple(self._sample(handle, index, name) for handle, index, name in self._handles)

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _sample(self, handle: Any, index: int, name: str) -> GpuSample:
        nvml, ask = self._nvml, self._ask
        rates = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        return GpuSample(
            index=index,
            name=name,
            utilisation=_share(rates.gpu) if rates is not None else None,
            memory_activity=_share(rates.memory) if rates is not None else None,
            memory_used_bytes=ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used)),
            process_memory_bytes=ask(lambda: self._memory_of_process(handle)),
            process_utilisation=ask(lambda: self._utilisation_of_process(handle, index)),
            power_w=ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / _KILO),
            pcie_tx_bytes_per_s=ask(
                lambda: _KILO * nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES)
            ),
            pcie_rx_bytes_per_s=ask(
                lambda: _KILO * nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES)
            ),
            sm_clock_hz=ask(lambda: _MEGA * nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_clock_hz=ask(lambda: _MEGA * nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            video_decoder_utilisation=ask(lambda: _share(nvml.nvmlDeviceGetDecoderUtilization(handle)[0])),
            jpeg_decoder_utilisation=ask(lambda: _share(nvml.nvmlDeviceGetJpgUtilization(handle)[0])),
        )

    def _ask(self, question: Callable[[], Value]) -> Value | None:
        try:
            return question()
        except self._nvml.NVMLError:
            return None

    def _memory_of_process(self, handle: Any) -> int | None:
        for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == self._pid:
                return None if process.usedGpuMemory is None else int(process.usedGpuMemory)
        return None

    def _utilisation_of_process(self, handle: Any, index: int) -> float | None:
        samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_us[index])
        self._seen_us[index] = max((sample.timeStamp for sample in samples), default=self._seen_us[index])
        mine = [sample for sample in samples if sample.pid == self._pid]
        return _share(max(mine, key=lambda sample: sample.timeStamp).smUtil) if mine else None


def open_gpu_sampler(ordinals: Sequence[int] | None = None) -> tuple[GpuSampler | None, str]:
    """Sampler of the CUDA devices ``ordinals`` (None: every GPU that the driver knows), or None and why not."""
    try:
        import pynvml
    except ImportError as error:
        return None, f"the Python package nvidia-ml-py cannot be imported ({error})"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return None, "no NVIDIA driver (libnvidia-ml.so.1 is not found)"
    except pynvml.NVMLError as error:
        return None, f"no usable NVIDIA driver ({error})"
    try:
        handles = _handles(pynvml, ordinals)
        if handles:
            return GpuSampler(pynvml, handles), ""
        reason = "the NVIDIA driver knows no GPU"
    except (pynvml.NVMLError, ImportError, RuntimeError) as error:
        reason = f"the GPU cannot be asked ({error})"
    pynvml.nvmlShutdown()
    return None, reason


def _handles(nvml: Any, ordinals: Sequence[int] | None) -> list[Any]:
    if ordinals is None:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    return [nvml.nvmlDeviceGetHandleByPciBusId(_pci_bus_id(ordinal)) for ordinal in ordinals]


def _pci_bus_id(ordinal: int) -> str:
    """PCI bus id of ``cuda:N``: CUDA_VISIBLE_DEVICES renumbers CUDA's devices, never NVML's."""
    from cuda.bindings import runtime

    status, name = runtime.cudaDeviceGetPCIBusId(32, ordinal)
    if status != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"cuda:{ordinal}: cudaDeviceGetPCIBusId ended with status {int(status)}")
    return str(name.split(b"\0")[0].decode())


def _share(percent: int) -> float:
    return min(100, percent) / 100
