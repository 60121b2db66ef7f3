"""How many lanes, threads and images per engine call: from the machine and what was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .backends.interface import Engine
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


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """What was asked: None means chosen from the machine. ``batch_size`` is the most images per engine call."""

    decoder: DecoderName = DecoderName.AUTO
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    batch_size: int = 32
    lanes: int | None = None
    threads: int = 1
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        if self.micro_batch is not None and self.micro_batch > self.batch_size:
            raise UsageError(
                f"A micro-batch of {self.micro_batch} does not fit in a batch of {self.batch_size}. Raise --batch-size."
            )


@dataclass(frozen=True, slots=True)
class LanePlan:
    """What was chosen."""

    decoder: str
    lanes: int
    threads: int
    micro_batch: int


def make_scheduler(engine: Engine, options: LaneOptions, preprocess: Preprocess) -> tuple[Scheduler, LanePlan]:
    """Scheduler with one lane per usable CPU, each with a decoder of its own, all sharing ``engine``."""
    micro_batch = options.micro_batch or min(options.batch_size, CACHE_MICRO_BATCH)
    count = options.lanes or max(1, cpu_allowance().threads // options.threads)

    def new_decoder() -> Decoder:
        return make_decoder(options.decoder, preprocess, options.decode, max_batch=micro_batch)

    return _scheduler(engine, count, micro_batch, new_decoder, options.threads)


def _scheduler(
    engine: Engine, count: int, micro_batch: int, new_decoder: Callable[[], Decoder], threads: int
) -> tuple[Scheduler, LanePlan]:
    decoders = [new_decoder() for _ in range(count)]
    device = HostDevice()
    lanes = [cpu_lane(device, number, decoder, engine, micro_batch) for number, decoder in enumerate(decoders)]
    return Scheduler(lanes), LanePlan(decoders[0].name, count, threads, micro_batch)
