"""The project's kernels on a GPU: compiled for exactly that GPU, launched on the caller's stream."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...kernels.compile import compile_cubin
from ...kernels.errors import KernelError
from ...kernels.launch import Launch
from ..device import Stream
from ..errors import DeviceError
from .device import CudaDevice
from .foreign import stream_handle


class CudaKernels:
    """Kernels of one source on ``device``. Raises DeviceError where they cannot be compiled or loaded."""

    def __init__(self, device: CudaDevice, source: str, name: str, options: Sequence[str] = ()) -> None:
        try:
            cubin = compile_cubin(source, name, architecture_of(device), options)
        except KernelError as error:
            raise DeviceError(f"The kernels of {name} cannot be used on {device.name}. {error}") from error
        from cuda.core import Device, ObjectCode

        with device.cuda.current():
            Device(device.cuda.ordinal).set_current()
            self._code = ObjectCode.from_cubin(cubin, name=name)
        self._device = device
        self._kernels: dict[str, Any] = {}

    @classmethod
    def from_file(cls, device: CudaDevice, path: Path, options: Sequence[str] = ()) -> CudaKernels:
        return cls(device, path.read_text(encoding="utf-8"), path.name, options)

    def launch(self, launches: Sequence[Launch], *, stream: Stream) -> None:
        """Start the launches in their order. To be called by work that runs on ``stream``."""
        from cuda.core import LaunchConfig
        from cuda.core import Stream as CoreStream
        from cuda.core import launch as core_launch

        on = CoreStream.from_handle(stream_handle(stream))
        for one in launches:
            if one.kernel not in self._kernels:
                self._kernels[one.kernel] = self._code.get_kernel(one.kernel)
            config = LaunchConfig(grid=one.grid, block=one.block)
            core_launch(on, config, self._kernels[one.kernel], *one.arguments)


def architecture_of(device: CudaDevice) -> str:
    """``sm_90`` for compute capability 9.0."""
    kinds = device.cuda.runtime.cudaDeviceAttr
    wanted = (kinds.cudaDevAttrComputeCapabilityMajor, kinds.cudaDevAttrComputeCapabilityMinor)
    major, minor = (device.cuda.call("cudaDeviceGetAttribute", kind, device.cuda.ordinal) for kind in wanted)
    return f"sm_{major}{minor}"
