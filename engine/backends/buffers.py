"""What engines on a GPU have in common: the check of a batch's buffers, and ``infer`` on arrays of the host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cuda.device import CudaDevice
from ..device import Buffer
from ..errors import DeviceError, InferError
from ..slots import BufferSpec, Slot
from .interface import Context, DeviceEngine

PIXELS = "pixels"
_ON_HOST = "{} on the host"


def check_batch(
    pixels: Buffer, outputs: Mapping[str, Buffer], rows: int, *, wanted: BufferSpec, specs: Mapping[str, BufferSpec]
) -> None:
    """Raise ValueError for buffers that do not hold ``rows`` rows of what ``wanted`` (pixels) and ``specs`` say."""
    if outputs.keys() != specs.keys():
        raise ValueError(f"The batch has buffers for {sorted(outputs)}, the engine gives {sorted(specs)}. Bring those.")
    for name, buffer, spec in ((PIXELS, pixels, wanted), *((name, outputs[name], specs[name]) for name in specs)):
        fits = buffer.dtype == np.dtype(spec.dtype) and tuple(buffer.shape[1:]) == spec.shape[1:]
        if not fits or not 1 <= rows <= min(buffer.shape[0], spec.shape[0]):
            raise ValueError(
                f"A batch of {rows} does not fit in '{name}': {buffer.dtype} {list(buffer.shape)} for "
                f"{np.dtype(spec.dtype)} {list(spec.shape)}. Take buffers as output_specs describes them."
            )


class HostCalls:
    """``Engine.infer`` of an engine on a GPU, for callers that have arrays of the host: one call at a time.

    ``stream`` is its own; context and buffers are made for the first call and grow with the largest batch.
    """

    def __init__(self, engine: DeviceEngine, device: CudaDevice) -> None:
        self._engine = engine
        self._device = device
        self._lock = threading.Lock()
        self.stream = device.new_stream("infer")
        self._context: Context | None = None
        self._slot: Slot | None = None
        self._rows = 0

    def infer(self, pixels: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
        """Outputs of exactly ``len(pixels)`` rows. Raises InferError and DeviceError."""
        rows, largest = len(pixels), self._engine.max_batch
        size = (*self._engine.spec.preprocess.size, 3)
        if not 1 <= rows <= largest or pixels.shape[1:] != size or pixels.dtype != np.uint8:
            raise InferError(
                "runtime_error",
                f"{self._engine.name} takes uint8 [1 to {largest}, {size[0]}, {size[1]}, 3], not {pixels.dtype} "
                f"{list(pixels.shape)}. Lower --batch-size, or build the plan for a larger batch.",
            )
        with self._lock:
            self._prepare(rows)
            return self._infer(pixels)

    def close(self) -> None:
        """Give everything back; a lost GPU would refuse, and hide why it is lost."""
        with suppress(DeviceError):
            self._give_back()
        self.stream.close()

    def _give_back(self) -> None:
        self._rows = 0
        context, self._context = self._context, None
        if context is not None:
            context.close()
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.close()

    def _prepare(self, rows: int) -> None:
        if self._context is None:
            self._context = self._engine.new_context(self.stream)
        if self._slot is not None and rows <= self._rows:
            return
        if self._slot is not None:
            slot, self._slot = self._slot, None
            slot.close()
        specs = {PIXELS: BufferSpec((rows, *self._engine.spec.preprocess.size, 3), np.uint8)}
        specs |= self._engine.output_specs(rows)
        on_host = {_ON_HOST.format(name): replace(spec, pinned=True) for name, spec in specs.items()}
        self._slot = Slot(self._device, specs | on_host)
        self._rows = rows

    def _infer(self, pixels: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
        assert self._context is not None
        assert self._slot is not None
        rows, context, buffers, stream = len(pixels), self._context, self._slot.buffers, self.stream
        outputs = {name: buffers[name] for name in self._engine.output_specs(rows)}
        there = {name: buffers[_ON_HOST.format(name)][:rows] for name in (PIXELS, *outputs)}
        there[PIXELS][...] = pixels

        def work() -> None:
            self._device.copy(buffers[PIXELS][:rows], there[PIXELS], stream=stream)
            context.enqueue(buffers[PIXELS], outputs, rows, stream=stream)
            for name, buffer in outputs.items():
                self._device.copy(there[name], buffer[:rows], stream=stream)

        _run(work, stream)
        return {name: there[name].copy() for name in outputs}


def _run(work: Callable[[], None], stream: Any) -> None:
    """Run ``work`` on the stream and wait for all that it has started; raises what it raised."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # raised on the caller's thread
            errors.append(error)

    stream.submit(guarded)
    stream.synchronize()
    if errors:
        raise errors[0]
