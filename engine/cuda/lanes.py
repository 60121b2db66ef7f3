"""The lanes of one GPU, each with streams, slots, decoder and host threads of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from ..backends.interface import DeviceEngine
from ..decoders.interface import DecodeOptions
from ..decoders.make import DecoderName
from ..decoders.make_on_device import make_device_decoder
from ..preprocess import Preprocess
from ..scheduler import Scheduler
from ..stages import Lane
from .device import CudaDevice
from .lane import READ_PIECES, device_lane


def new_device_lanes(
    engine: DeviceEngine,
    preprocess: Preprocess,
    decoder: DecoderName,
    decode: DecodeOptions,
    *,
    count: int,
    batch_size: int,
    slots: int,
    threads: int,
) -> tuple[list[Lane], str]:
    """``count`` lanes with ``threads`` decoders of the host each, and the name of the decoder that they took; all or
    none.
    """
    device = engine.device
    assert isinstance(device, CudaDevice), "an engine on a device that is no GPU has no such lanes"
    lanes: list[Lane] = []
    with ExitStack() as held:
        compute = device.new_stream(f"{device.name}-compute")
        held.callback(compute.close)
        held.callback(lambda: Scheduler(lanes).close())
        for number in range(count):
            name = f"{device.name}-lane-{number}"
            pool = held.enter_context(ThreadPoolExecutor(max(threads, READ_PIECES), thread_name_prefix=f"{name}-host"))
            taken = make_device_decoder(
                decoder, preprocess, decode, device, pool, max_batch=batch_size, threads=threads
            )
            lane = device_lane(engine, taken, pool, compute=compute, name=name, batch_size=batch_size, slots=slots)
            lanes.append(lane)
        held.pop_all()
    return lanes, taken.name
