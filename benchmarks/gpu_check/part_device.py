"""Device layer, copies and the production lane under the scheduler; needs cuda-python and NVRTC, nothing else."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...engine.cuda.device import CudaDevice
from ...engine.device import Buffer, Stream
from ...engine.errors import DeviceError
from .lanes_alone import RawDecoder, measured, new_lane, numbered, outcomes, overlapped_equals_alone
from .late_affine import SIDE, LateAffineEngine, expected
from .record import Check, CheckFailedError, Found

_BATCH, _PICTURES = 64, 256
_COPIED_BYTES, _COPIES = 64 << 20, 40
_TOO_MUCH_BYTES = 1 << 50


@functools.cache
def _engine() -> LateAffineEngine:
    return LateAffineEngine(CudaDevice(0))


@functools.cache
def _pictures() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (_PICTURES, SIDE, SIDE, 3), dtype=np.uint8)


def _raw(pool: object) -> RawDecoder:
    del pool  # nothing is decoded
    return RawDecoder(_engine().device, _pictures())


def checks() -> Sequence[Check]:
    return (
        Check("what goes to the GPU comes back", _round_trips),
        Check("too much memory is an error that leaves the GPU usable", _too_much),
        Check("one batch at a time", _alone),
        Check("2,000 overlapped batches", _overlapped),
        Check("copies alone", _copies),
        Check("speed of the lane around a kernel of 0.05 ms", _speed),
    )


def _round_trips() -> Found:
    device = _engine().device
    stream = device.new_stream("round trips")
    shapes: tuple[tuple[tuple[int, ...], DTypeLike], ...] = (
        ((1,), np.uint8),
        ((3, 5), np.int64),
        ((64, 224, 224, 3), np.uint8),
        ((7, 1001), np.float32),
    )
    for shape, dtype in shapes:
        values = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)
        here, there, back = _buffers(device, values)
        stream.submit(functools.partial(_there_and_back, device, here, there, back, stream))
        stream.synchronize()
        if not np.array_equal(back, values):
            raise CheckFailedError(f"{np.dtype(dtype)} {list(shape)} came back changed")
        for buffer in (here, there, back):
            device.release(buffer)
    stream.close()
    return Found(f"{len(shapes)} shapes")


def _buffers(device: CudaDevice, values: NDArray[Any]) -> tuple[NDArray[Any], Buffer, NDArray[Any]]:
    """Pinned values, memory of the GPU, and pinned zeros."""
    here, back = (device.allocate_pinned(values.shape, values.dtype) for _ in range(2))
    here[...] = values
    back[...] = 0
    return here, device.allocate(values.shape, values.dtype), back


def _there_and_back(device: CudaDevice, here: NDArray[Any], there: Buffer, back: NDArray[Any], stream: Stream) -> None:
    device.copy(there, here, stream=stream)
    device.copy(back, there, stream=stream)


def _too_much() -> Found:
    device = _engine().device
    try:
        device.allocate((_TOO_MUCH_BYTES,), np.uint8)
    except DeviceError as error:
        device.release(device.allocate((16,), np.uint8))
        return Found(str(error))
    raise CheckFailedError(f"{_TOO_MUCH_BYTES:,} bytes were given out")


def _alone() -> Found:
    works = [numbered(range(at, at + _BATCH)) for at in range(0, _PICTURES, _BATCH)]
    found = outcomes(new_lane(_engine(), _raw, batch=_BATCH, slots=1), works, depth=1)
    for at, outcome in zip(range(0, _PICTURES, _BATCH), found, strict=True):
        if not np.array_equal(outcome.rows.columns["embedding"], expected(_pictures()[at : at + _BATCH])):
            raise CheckFailedError(f"the batch at {at} is not what NumPy computes")
    return Found(f"{len(found)} batches are what NumPy computes, bit for bit")


def _overlapped() -> Found:
    return overlapped_equals_alone(_engine(), _raw, numbered(range(_PICTURES)), batches=2000, batch=_BATCH)


def _speed() -> Found:
    works = [numbered(range(at, at + _BATCH)) for at in range(0, _PICTURES, _BATCH)]
    return measured(_engine(), _raw, works, repeat=400)


def _copies() -> Found:
    """Both directions alone, then at the same time on two streams."""
    device = _engine().device
    up, down = device.new_stream("up"), device.new_stream("down")
    host = [device.allocate_pinned((_COPIED_BYTES,), np.uint8) for _ in range(2)]
    there = [device.allocate((_COPIED_BYTES,), np.uint8) for _ in range(2)]
    upwards = functools.partial(device.copy, there[0], host[0], stream=up)
    downwards = functools.partial(device.copy, host[1], there[1], stream=down)
    numbers = {
        "to_gpu_gb_per_s": _copy_rate({up: upwards}),
        "from_gpu_gb_per_s": _copy_rate({down: downwards}),
        "both_gb_per_s": _copy_rate({up: upwards, down: downwards}),
    }
    for stream in (up, down):
        stream.close()
    for buffer in (*host, *there):
        device.release(buffer)
    return Found(f"pinned blocks of {_COPIED_BYTES >> 20} MiB", numbers)


def _copy_rate(works: dict[Any, Any]) -> float:
    """GB/s of all streams together."""
    for stream, work in works.items():
        stream.submit(work)
        stream.synchronize()
    started = time.perf_counter()
    for _ in range(_COPIES):
        for stream, work in works.items():
            stream.submit(work)
    for stream in works:
        stream.synchronize()
    return len(works) * _COPIES * _COPIED_BYTES / (time.perf_counter() - started) / 1e9
