"""Production lanes for the checks: fed with numbered pictures from memory, run overlapped or one batch at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.backends.interface import DeviceEngine
from ...engine.batch import Decoded, Encoded, Outcome, Sample
from ...engine.cuda.lane import device_lane
from ...engine.decoders.device_interface import DeviceBatch, DeviceDecoder, Placed, copy_rows
from ...engine.device import Buffer, Device, Stream
from ...engine.scheduler import Scheduler
from ...engine.slots import Lease
from ...engine.stages import Lane
from .record import CheckFailedError, Found

SLOTS, DEPTH = 3, 5
_THREADS = 4
_TURNS = 16
"""Different batches of a soak: each comes again and again, next to others than before."""

MakeDecoder = Callable[[ThreadPoolExecutor], DeviceDecoder]
Work = Sequence[Sample]


class RawDecoder:
    """Gives the picture whose number is a sample's bytes: the way of a decoder of the host, without its time."""

    name = "raw"

    def __init__(self, device: Device, pictures: NDArray[np.uint8]) -> None:
        self._device = device
        self._pictures = pictures

    def prepare(self, samples: Sequence[Encoded], staged: NDArray[np.uint8]) -> Sequence[Encoded]:
        for row, sample in enumerate(samples):
            staged[row] = self._pictures[int(sample.data)]
        return samples

    def start(
        self, prepared: Sequence[Encoded], staged: NDArray[np.uint8], pixels: Buffer, *, stream: Stream
    ) -> DeviceBatch:
        copy_rows(self._device, pixels, [Placed(staged, row) for row in range(len(prepared))], stream=stream)
        height, width = self._pictures.shape[1:3]
        return DeviceBatch([Decoded(sample.id, width, height, self.name) for sample in prepared], [])

    def close(self) -> None:
        """Nothing is held."""


def numbered(numbers: Iterable[int]) -> Work:
    """Samples for a RawDecoder."""
    return [Sample(str(number), lambda number=number: b"%d" % number) for number in numbers]  # type: ignore[misc]


def samples_of(files: Sequence[bytes]) -> Work:
    """Encoded pictures in memory as samples."""
    return [Sample(str(number), lambda data=data: data) for number, data in enumerate(files)]  # type: ignore[misc]


def new_lane(engine: DeviceEngine, make: MakeDecoder, *, batch: int, slots: int = SLOTS) -> Lane:
    """A lane as `vdali run` makes it."""
    pool = ThreadPoolExecutor(_THREADS)
    compute = engine.device.new_stream("compute")
    return device_lane(engine, make(pool), pool, compute=compute, name="check", batch_size=batch, slots=slots)


def outcomes(lane: Lane, works: Iterable[Work], *, depth: int = DEPTH) -> list[Outcome]:
    with closing(Scheduler([lane], depth=depth)) as scheduler:
        return list(scheduler.run(works))


def overlapped_equals_alone(
    engine: DeviceEngine, make: MakeDecoder, samples: Sequence[Sample], *, batches: int, batch: int
) -> Found:
    """Every row of ``batches`` overlapped batches has the bits that it has when batches run one at a time."""
    turns = [[samples[(turn * batch + row) % len(samples)] for row in range(batch)] for turn in range(_TURNS)]
    column = next(iter(engine.output_specs(1)))
    lane = new_lane(engine, make, batch=batch)  # one for both: another session of a runtime may choose other kernels
    alone = [_rows_of(outcome, column) for outcome in Scheduler([lane], depth=1).run(turns)]
    works = (turns[number % _TURNS] for number in range(batches))
    started = time.perf_counter()
    with closing(Scheduler([lane], depth=DEPTH)) as scheduler:
        wrong = [
            number
            for number, outcome in enumerate(scheduler.run(works))
            if not np.array_equal(_rows_of(outcome, column), alone[number % _TURNS])
        ]
    seconds = time.perf_counter() - started
    if wrong:
        raise CheckFailedError(
            f"{len(wrong)} of {batches} batches differ from the same ones run alone, first {wrong[0]}"
        )
    return Found(f"{batches} batches of {batch} are bit-equal to the same ones run alone", {"wall_s": seconds})


def _rows_of(outcome: Outcome, column: str) -> NDArray[Any]:
    if outcome.failures:
        raise CheckFailedError(f"{outcome.failures[0].id} failed: {outcome.failures[0].message}")
    return np.asarray(outcome.rows.columns[column])


def measured(engine: DeviceEngine, make: MakeDecoder, works: Sequence[Work], *, repeat: int) -> Found:
    """Rate of each stage alone, of the whole, and what the whole makes of its slowest stage."""
    batch = len(works[0])
    rates = stage_rates(new_lane(engine, make, batch=batch), works[0], repeat=repeat)
    many = [works[number % len(works)] for number in range(repeat)]
    lane = new_lane(engine, make, batch=batch)
    with closing(Scheduler([lane], depth=DEPTH)) as scheduler:
        for _ in scheduler.run(many[: 2 * DEPTH]):
            pass
        started = time.perf_counter()
        for _ in scheduler.run(many):
            pass
        rate = repeat * batch / (time.perf_counter() - started)
    return Found(f"slowest alone: {min(rates, key=lambda name: rates[name])}", summary_of(rates, rate))


def summary_of(rates: Mapping[str, float], rate: float) -> dict[str, float]:
    """Numbers for the record: overlap efficiency is the whole's rate over its slowest stage's."""
    numbers = {f"{name}_samples_per_s": value for name, value in rates.items()}
    return numbers | {
        "pipeline_samples_per_s": rate,
        "overlap_efficiency": rate / min(rates.values()),
        "compute_idle_share": 1 - rate / rates["infer"],
    }


def stage_rates(lane: Lane, work: Work, *, repeat: int) -> dict[str, float]:
    """Samples per second of each stage of ``lane``, again and again on one batch while nothing else runs."""
    rates: dict[str, float] = {}
    with closing(Scheduler([lane])):
        lease = Lease(lane.slots[0].buffers)
        value: Any = work
        for stage in lane.stages:
            stream, before = lane.streams[stage.role], value
            value = _run_on(stream, lambda stage=stage, before=before: stage.work(before, lease))  # type: ignore[misc]
            started = time.perf_counter()
            for _ in range(repeat):
                stream.submit(lambda stage=stage, before=before: stage.work(before, lease))  # type: ignore[misc]
            stream.synchronize()
            rates[stage.name] = repeat * len(work) / (time.perf_counter() - started)
    return rates


def _run_on(stream: Stream, work: Callable[[], Any]) -> Any:
    """Result of ``work`` on ``stream``, when all that it has started is done."""
    found: list[Any] = []
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            found.append(work())
        except BaseException as error:  # raised on the caller's thread
            errors.append(error)

    stream.submit(guarded)
    stream.synchronize()
    if errors:
        raise errors[0]
    return found[0]
