"""How many lanes, threads and images per engine call: from the machine and what was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .backends.interface import DeviceEngine, Engine
from .cpu import cpu_allowance
from .decoders.interface import DecodeOptions, Decoder
from .decoders.make import DecoderName, make_decoder
from .device import HostDevice
from .errors import UsageError
from .pipeline import cpu_lane
from .preprocess import Preprocess
from .scheduler import Scheduler

CACHE_MICRO_BATCH = 8
"""Images per engine call on a CPU: activations of 4 to 8 stay in the cache (mobilenetv3_small_100 end to end on two
AVX2 cores: 398 images/s at 8, 286 at 32)."""

CPU_DEPTH = 2
"""Batches in flight per lane of a CPU: one at work, one waiting."""

DEVICE_SLOTS = 3
"""Sets of buffers of a GPU's lane: one is filled, one is read, one is on its way back."""

DEVICE_ROLES = 5
"""Roles of stream in a GPU's lane: with as many batches in flight each can be at work. The simulation gains nothing
beyond that."""


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """What was asked: None means chosen from the machine. ``batch_size`` is the most images per engine call.

    ``threads`` are those of one CPU engine call. ``depth`` is the number of batches in flight per lane, ``slots`` how
    many sets of buffers a GPU's lane has for them.
    """

    decoder: DecoderName = DecoderName.AUTO
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    batch_size: int = 32
    lanes: int | None = None
    threads: int = 1
    micro_batch: int | None = None
    depth: int | None = None
    slots: int | None = None

    def __post_init__(self) -> None:
        if self.micro_batch is not None and self.micro_batch > self.batch_size:
            raise UsageError(
                f"A micro-batch of {self.micro_batch} does not fit in a batch of {self.batch_size}. Raise --batch-size."
            )
        for name, value in (("depth", self.depth), ("slots", self.slots), ("lanes", self.lanes)):
            if value is not None and value < 1:
                raise UsageError(f"The number of {name} must be at least 1, got {value}.")


@dataclass(frozen=True, slots=True)
class LanePlan:
    """What was chosen. ``threads`` are, on a GPU, the host's for each lane: they read, and decode what it cannot."""

    decoder: str
    lanes: int
    threads: int
    micro_batch: int
    depth: int = CPU_DEPTH
    slots: int = 1
    device: str = HostDevice.name


def make_scheduler(engine: Engine, options: LaneOptions, preprocess: Preprocess) -> tuple[Scheduler, LanePlan]:
    """Scheduler for ``engine``, and what was chosen for it.

    On a CPU one lane per usable core, each with a decoder of its own, all sharing ``engine``. On a GPU one lane that
    overlaps decode, compute and copies on streams of its own, unless more are asked for. Raises DeviceError where a
    decoder or the GPU's memory is missing.
    """
    if isinstance(engine, DeviceEngine):
        return _device_scheduler(engine, options, preprocess)
    micro_batch = options.micro_batch or min(options.batch_size, CACHE_MICRO_BATCH)
    count = options.lanes or max(1, cpu_allowance().threads // options.threads)

    def new_decoder() -> Decoder:
        return make_decoder(options.decoder, preprocess, options.decode, max_batch=micro_batch)

    return _cpu_scheduler(engine, count, micro_batch, new_decoder, options)


def _cpu_scheduler(
    engine: Engine, count: int, micro_batch: int, new_decoder: Callable[[], Decoder], options: LaneOptions
) -> tuple[Scheduler, LanePlan]:
    decoders = [new_decoder() for _ in range(count)]
    device = HostDevice()
    lanes = [cpu_lane(device, number, decoder, engine, micro_batch) for number, decoder in enumerate(decoders)]
    depth = options.depth or CPU_DEPTH
    return Scheduler(lanes, depth=depth), LanePlan(decoders[0].name, count, options.threads, micro_batch, depth)


def _device_scheduler(engine: DeviceEngine, options: LaneOptions, preprocess: Preprocess) -> tuple[Scheduler, LanePlan]:
    from .cuda.lanes import new_device_lanes  # loads what only a GPU needs

    count, slots = options.lanes or 1, options.slots or DEVICE_SLOTS
    batch = min(options.micro_batch or options.batch_size, engine.max_batch)
    threads = max(1, cpu_allowance().threads // count)
    depth = options.depth or max(DEVICE_ROLES, slots + 1)
    lanes, decoder = new_device_lanes(
        engine, preprocess, options.decoder, options.decode, count=count, batch_size=batch, slots=slots, threads=threads
    )
    plan = LanePlan(decoder, count, threads, batch, depth, slots, engine.device.name)
    return Scheduler(lanes, depth=depth), plan
