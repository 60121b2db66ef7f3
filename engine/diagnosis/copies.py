"""Measures the copies between host and device alone, on the device seam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..device import Buffer, Device, Stream
from .measure import Meter
from .model import DOWNLOAD, UPLOAD, StageCost

_AT_ONCE = 8
"""Copies that are queued before they are waited for, so that starting one is not what is measured."""


def copy_costs(
    device: Device, pixels: NDArray[np.uint8], outputs: Mapping[str, NDArray[Any]], seconds: float
) -> dict[str, StageCost]:
    """Cost of a sample from pinned memory of the host to the device (a batch of ``pixels``) and back (``outputs``).

    Raises DeviceError where the device has not enough memory.
    """
    buffers: list[Buffer] = []

    def pair(array: NDArray[Any]) -> tuple[Buffer, Buffer]:
        host = device.allocate_pinned(array.shape, array.dtype)
        buffers.append(host)
        host[:] = array
        buffers.append(device.allocate(array.shape, array.dtype))
        return host, buffers[-1]

    with closing(device.new_stream("copies")) as stream:
        try:
            inputs = [pair(pixels)]
            results = [pair(output) for output in outputs.values()]
            up = [(there, host) for host, there in inputs]
            down = [(host, there) for host, there in results]
            return {
                UPLOAD: _cost(device, stream, up, len(pixels), seconds / 2),
                DOWNLOAD: _cost(device, stream, down, len(pixels), seconds / 2),
            }
        finally:
            stream.synchronize()
            for buffer in buffers:
                device.release(buffer)


def _cost(
    device: Device, stream: Stream, copies: Sequence[tuple[Buffer, Buffer]], samples: int, seconds: float
) -> StageCost:
    """Cost of a sample when all ``copies`` (target, source) of a batch are made over and over."""

    def some_batches() -> None:
        for _ in range(_AT_ONCE):
            for target, source in copies:
                stream.submit(partial(device.copy, target, source, stream=stream))
        stream.synchronize()

    some_batches()
    meter = Meter()
    while not meter.is_over(seconds):
        meter.time(some_batches, _AT_ONCE * samples)
    return meter.cost
