"""The buffers of batches in flight: allocated once, lent to one batch at a time.

A lane has a few slots, taken in turn. A stage *takes* a buffer of its batch's slot before the first use and *frees*
it after the last one; each buffer goes its own way, so that the input is free for the next decode while the outputs of
the same batch are still on their way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import DTypeLike

from .device import Buffer, Device, Event


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """Shape (the most rows of a batch first) and dtype; ``pinned``: memory of the host for a GPU's copies."""

    shape: tuple[int, ...]
    dtype: DTypeLike
    pinned: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def with_rows(self, rows: int) -> BufferSpec:
        """The same for at most ``rows`` rows."""
        return replace(self, shape=(rows, *self.shape[1:]))


class Slot:
    """Buffers by name, and for each the event after which its last batch no longer uses it."""

    def __init__(self, device: Device, specs: Mapping[str, BufferSpec]) -> None:
        self._device = device
        self.freed: dict[str, Event] = {}
        self.buffers: dict[str, Buffer] = {}
        try:
            for name, spec in specs.items():
                allocate = device.allocate_pinned if spec.pinned else device.allocate
                self.buffers[name] = allocate(spec.shape, spec.dtype)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the memory back; no stream may use it any more."""
        while self.buffers:
            self._device.release(self.buffers.popitem()[1])


@dataclass(slots=True)
class Lease:
    """What a batch holds while it is in flight: the buffers of its slot, and how to give one back early.

    ``freed`` has, for a buffer that another stream waits for, the event after which it is free. The stage that frees
    it may record that event itself, as soon as its last read is queued, and ``mark`` it (TensorRT's input-consumed
    event); otherwise it is recorded when the stage has returned. ``slot`` is the slot's place in its lane.
    """

    buffers: Mapping[str, Buffer]
    freed: dict[str, Event] = field(default_factory=dict)
    slot: int = 0


def allocate_slots(device: Device, specs: Mapping[str, BufferSpec], count: int) -> list[Slot]:
    """``count`` slots; all or none. Raises DeviceError when the device has not enough memory."""
    with ExitStack() as held:
        slots = [held.enter_context(closing(Slot(device, specs))) for _ in range(count)]
        held.pop_all()
    return slots
