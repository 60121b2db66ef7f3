"""The probe with the real packages, and with stand-ins for drivers that this machine does not have."""

from __future__ import annotations

import enum
import subprocess
import sys

import pytest
from vdali.engine import gpu_probe
from vdali.engine.gpu_probe import GpuProbe, probe_gpu


class Status(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorInsufficientDriver = 35
    cudaErrorNoDevice = 100


class Properties:
    name = b"NVIDIA H200\0\0"
    totalGlobalMem = 150_000_000_000
    major = 9
    minor = 0


class FakeRuntime:
    """cuda.bindings.runtime with a chosen driver version, status and number of GPUs."""

    cudaError_t = Status

    def __init__(self, version: int, status: Status = Status.cudaSuccess, count: int = 0, broken: bool = False):
        self.version, self.status, self.count, self.broken = version, status, count, broken

    def cudaDriverGetVersion(self):
        return Status.cudaSuccess, self.version

    def cudaGetDeviceCount(self):
        return self.status, self.count if self.status == 0 else None

    def cudaGetDeviceProperties(self, ordinal):
        return (Status.cudaErrorNoDevice, None) if self.broken else (Status.cudaSuccess, Properties())

    def cudaGetErrorName(self, status):
        return Status.cudaSuccess, status.name.encode()

    def cudaGetErrorString(self, status):
        return Status.cudaSuccess, b"in words"


class FakeNvml:
    """pynvml on a machine with one GPU; ``error`` is raised by nvmlInit or, with ``late``, by a query."""

    class NVMLError(Exception):
        pass

    class NVMLError_LibraryNotFound(NVMLError):
        pass

    def __init__(self, error: Exception | None = None, late: bool = False):
        self.error, self.late, self.started = error, late, 0

    def nvmlInit(self):
        if self.error and not self.late:
            raise self.error
        self.started += 1

    def nvmlShutdown(self):
        self.started -= 1

    def nvmlSystemGetDriverVersion(self):
        if self.error:
            raise self.error
        return "580.65"

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"


def probe_of(monkeypatch, nvml: FakeNvml, runtime: FakeRuntime) -> GpuProbe:
    monkeypatch.setattr(gpu_probe, "_ask_nvml", lambda: gpu_probe._facts_of_nvml(nvml))
    monkeypatch.setattr(gpu_probe, "_ask_cuda", lambda: gpu_probe._facts_of_cuda(runtime))
    found = probe_gpu()
    assert nvml.started == 0
    return found


def test_this_machine_has_gpus_or_a_reason():
    found = probe_gpu()
    assert (found.count > 0) != bool(found.reason)
    assert bool(found.reason) == bool(found.advice)


@pytest.mark.parametrize("package", ["pynvml", "cuda"])
def test_a_package_that_does_not_import_is_a_reason(package):
    code = f"""
import sys
sys.modules[{package!r}] = None
from vdali.engine.gpu_probe import _ask_cuda, _ask_nvml, probe_gpu
assert {package!r} == "pynvml" or "cuda-python" in probe_gpu().advice
print((_ask_nvml if {package!r} == "pynvml" else _ask_cuda)().error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cannot be imported" in found.stdout


def test_a_usable_gpu_needs_no_reason(monkeypatch):
    found = probe_of(monkeypatch, FakeNvml(), FakeRuntime(13000, count=2))
    assert found.count == 2
    assert (found.driver, found.cuda, found.reason, found.advice) == ("580.65", "13.0", "", "")
    assert found.gpus[1] == gpu_probe.Gpu("NVIDIA H200", 150_000_000_000, "9.0")


def test_a_gpu_without_nvml_is_still_usable(monkeypatch):
    missing = FakeNvml(FakeNvml.NVMLError_LibraryNotFound())
    found = probe_of(monkeypatch, missing, FakeRuntime(13000, count=1))
    assert (found.count, found.driver, found.reason) == (1, "", "")


def test_no_driver_at_all(monkeypatch):
    missing = FakeNvml(FakeNvml.NVMLError_LibraryNotFound())
    found = probe_of(monkeypatch, missing, FakeRuntime(0, Status.cudaErrorInsufficientDriver))
    assert found.count == 0
    assert found.reason == "no NVIDIA driver (NVML: libnvidia-ml.so.1 is not found; CUDA: libcuda.so.1 is not found)"
    assert "--gpus all" in found.advice


def test_a_driver_older_than_the_runtime(monkeypatch):
    found = probe_of(monkeypatch, FakeNvml(), FakeRuntime(12040, Status.cudaErrorInsufficientDriver))
    assert "too old" in found.reason
    assert "580.65" in found.reason
    assert (found.count, found.cuda) == (0, "12.4")


def test_gpus_hidden_by_the_environment(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = probe_of(monkeypatch, FakeNvml(), FakeRuntime(13000, Status.cudaErrorNoDevice))
    assert "CUDA_VISIBLE_DEVICES=''" in found.reason
    assert found.seen == ("NVIDIA H200",)


def test_a_gpu_that_only_the_management_library_sees(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = probe_of(monkeypatch, FakeNvml(), FakeRuntime(0))
    assert "NVIDIA H200, but CUDA cannot use it" in found.reason
    assert "NVIDIA_DRIVER_CAPABILITIES" in found.advice


@pytest.mark.parametrize("late", [False, True])
def test_a_broken_management_library_is_told_in_its_own_words(monkeypatch, late):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = FakeNvml(FakeNvml.NVMLError("Driver/library version mismatch"), late)
    found = probe_of(monkeypatch, nvml, FakeRuntime(13000, Status.cudaErrorNoDevice))
    assert "Driver/library version mismatch" in found.reason
    assert "cudaErrorNoDevice, in words" in found.reason


def test_a_gpu_that_fails_to_describe_itself_is_not_usable(monkeypatch):
    found = probe_of(monkeypatch, FakeNvml(), FakeRuntime(13000, count=1, broken=True))
    assert found.count == 0
    assert "cuda:0: cudaErrorNoDevice" in found.reason
