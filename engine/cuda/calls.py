"""Calls of the CUDA runtime through cuda-python, each with its status checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import DeviceError

CONTEXT_LOST = frozenset(
    {
        "cudaErrorAssert",
        "cudaErrorContained",
        "cudaErrorECCUncorrectable",
        "cudaErrorExternalDevice",
        "cudaErrorHardwareStackError",
        "cudaErrorIllegalAddress",
        "cudaErrorIllegalInstruction",
        "cudaErrorInvalidAddressSpace",
        "cudaErrorInvalidPc",
        "cudaErrorLaunchFailure",
        "cudaErrorLaunchTimeout",
        "cudaErrorMisalignedAddress",
        "cudaErrorNvlinkUncorrectable",
        "cudaErrorTensorMemoryLeak",
    }
)
"""After these every later call of the process fails (CUDA runtime API, cudaError_t)."""


class CudaCalls:
    """The CUDA runtime for one GPU: primary context, every call checked, and a stock of events.

    Handles and addresses are plain integers, as TensorRT and DALI take them. ``runtime`` is
    ``cuda.bindings.runtime``.
    """

    def __init__(self, runtime: Any, ordinal: int) -> None:
        self.runtime = runtime
        self.ordinal = ordinal
        self._spare_events: deque[int] = deque()

    def call(self, function: str, *arguments: Any) -> Any:
        """What the runtime's ``function`` returns beside its status; raises DeviceError unless that is success."""
        status, *values = getattr(self.runtime, function)(*arguments)
        if status != self.runtime.cudaError_t.cudaSuccess:
            self.runtime.cudaGetLastError()  # forgets it, or the next library that looks takes it for its own
            raise DeviceError(self._sentence(function, status))
        return values[0] if values else None

    def check_alive(self, during: str) -> None:
        """Raise DeviceError when what another library did, such as ``TensorRT``, has cost this process the GPU."""
        status = self.runtime.cudaGetLastError()[0]
        if self.runtime.cudaGetErrorName(status)[1].decode() in CONTEXT_LOST:
            raise DeviceError(self._sentence(during, status))

    @contextmanager
    def current(self) -> Iterator[None]:
        """This GPU as the calling thread's current one, and afterwards again the one before."""
        before = self.call("cudaGetDevice")
        if before == self.ordinal:
            yield
            return
        self.call("cudaSetDevice", self.ordinal)
        try:
            yield
        finally:
            self.call("cudaSetDevice", before)

    def take_event(self) -> int:
        """Handle of an event that nobody uses."""
        try:
            return self._spare_events.pop()
        except IndexError:
            # Blocking: a thread that waits for the GPU must leave its core to those that decode.
            flags = self.runtime.cudaEventDisableTiming | self.runtime.cudaEventBlockingSync
            with self.current():
                return int(self.call("cudaEventCreateWithFlags", flags))

    def give_event(self, handle: int) -> None:
        """Keep an event for its next use; a stream that was told to wait for it is not affected."""
        self._spare_events.append(handle)

    def close(self) -> None:
        while self._spare_events:
            self.call("cudaEventDestroy", self._spare_events.pop())

    def _sentence(self, function: str, status: Any) -> str:
        name = self.runtime.cudaGetErrorName(status)[1].decode()
        text = self.runtime.cudaGetErrorString(status)[1].decode()
        if name == "cudaErrorMemoryAllocation":
            advice = "Lower --batch-size or the depth, or free memory of the GPU: nvidia-smi shows who holds it."
        elif name in CONTEXT_LOST:
            advice = (
                "This process can no longer use the GPU. Start the same command again: it resumes. If it comes back, "
                "`dmesg | grep Xid` tells a fault of the GPU from one of the program."
            )
        else:
            advice = "Run `vdali doctor`, or use --device cpu."
        return f"{function} failed on cuda:{self.ordinal}: {name}, {text}. {advice}"
