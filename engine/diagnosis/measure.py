"""Measures each stage of a run alone, on real samples of its source.

CPU time is that of the process, so that threads inside a decoder or an engine count. Stages are measured in turn over
a few rounds: the median is taken of CPU time, the smallest of wall clock, since other processes can only add to it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
from numpy.typing import NDArray

from ..backends.interface import Engine
from ..batch import Batch, Decoded, Encoded, Outcome, Sample
from ..decoders.interface import Decoder
from ..errors import InputNotFoundError, ReadError
from ..sinks.parquet import ParquetSink
from ..sources.interface import Source
from ..tasks import rows_from_outputs
from .model import DECODE, INFER, LISTING, READ, ROWS, SINK, StageCost

ROUNDS = 3
MAX_BYTES = 512 << 20
"""Encoded bytes held in memory at most."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Picked:
    """Samples in memory, and what reading each for the first time cost.

    ``failures`` are those that could not be read. ``median_read_s`` is the wall clock of a typical first read, which
    a moment taken by other processes does not move. ``disk_share`` (0..1) of the bytes came from a disk, the rest from
    the page cache or a network; None where the system does not tell.
    """

    encoded: Sequence[Encoded]
    failures: int
    first_read: StageCost
    median_read_s: float
    disk_share: float | None


class Meter:
    """Adds up wall clock and CPU time of the process over calls; ``walls_s`` are the seconds of each call."""

    def __init__(self) -> None:
        self._started_s = time.perf_counter()
        self._cpu_s = 0.0
        self._samples = 0
        self.walls_s: list[float] = []

    def time(self, work: Callable[[], Value], samples: int = 1) -> Value:
        """Result of ``work``, which does so many samples."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return work()
        finally:
            self.walls_s.append(time.perf_counter() - wall)
            self._cpu_s += time.process_time() - cpu
            self._samples += samples

    def is_over(self, seconds: float) -> bool:
        return time.perf_counter() - self._started_s > seconds

    @property
    def cost(self) -> StageCost:
        """Cost of a sample; nothing where none was timed."""
        samples = max(1, self._samples)
        return StageCost(sum(self.walls_s) / samples, self._cpu_s / samples)


def pick_samples(source: Source, *, images: int, seconds: float) -> Picked:
    """Read up to ``images`` samples, for ``seconds`` or MAX_BYTES; raises InputNotFoundError where none is readable."""
    process = psutil.Process()
    encoded: list[Encoded] = []
    failures = size = 0
    before = _disk_bytes(process)
    meter = Meter()
    for sample in islice(_samples(source), images):
        try:
            encoded.append(Encoded(sample.id, meter.time(sample.read)))
        except ReadError:
            failures += 1
            continue
        size += len(encoded[-1].data)
        if size > MAX_BYTES or meter.is_over(seconds):
            break
    if not encoded:
        raise InputNotFoundError(
            f"No image could be read from {source.describe()} ({failures} failed). There is nothing to diagnose: "
            "check the INPUT."
        )
    after = _disk_bytes(process)
    share = min(1.0, (after - before) / max(1, size)) if before is not None and after is not None else None
    return Picked(encoded, failures, meter.cost, statistics.median(meter.walls_s), share)


class StagesAlone:
    """Each method costs one stage by itself, for about so many seconds.

    ``pixels`` is a full micro-batch of the source's pictures, ``outputs`` what the engine gives for it.
    """

    def __init__(
        self, source: Source, picked: Picked, engine: Engine, decoder: Decoder, *, micro_batch: int, scratch: Path
    ) -> None:
        """Decode one micro-batch; raises InputNotFoundError where no sample decodes."""
        self._source = source
        self._picked = picked
        self._engine = engine
        self._decoder = decoder
        self._scratch = scratch
        self._micro_batch = micro_batch
        height, width = engine.spec.preprocess.size
        self._out = np.empty((micro_batch, height, width, 3), np.uint8)
        samples = picked.encoded
        self._groups = [samples[first : first + micro_batch] for first in range(0, len(samples), micro_batch)]
        self._batch = self._cached_batch()
        self.pixels = self._batch.pixels
        self.outputs = engine.infer(self.pixels)

    def costs(self, seconds: float) -> dict[str, StageCost]:
        """Cost of every stage, each measured for ``seconds`` in all."""
        stages = {
            LISTING: self.listing,
            READ: self.read,
            DECODE: self.decode,
            INFER: self.infer,
            ROWS: self.rows,
            SINK: self.sink,
        }
        return {stage: _combined(costs) for stage, costs in in_rounds(stages, seconds).items()}

    def listing(self, seconds: float) -> StageCost:
        """An entry after the first: what a source does once, such as reading a folder's names, is not per entry."""
        meter = Meter()
        entries = iter(self._source)
        next(entries, None)
        end = object()
        while not meter.is_over(seconds) and meter.time(lambda: next(entries, end)) is not end:
            pass
        return meter.cost

    def read(self, seconds: float) -> StageCost:
        """The picked samples again, so that the page cache gives what it can."""
        meter = Meter()
        for sample in islice(_samples(self._source), len(self._picked.encoded)):
            with suppress(ReadError):
                meter.time(sample.read)
            if meter.is_over(seconds):
                break
        return meter.cost

    def decode(self, seconds: float, decoder: Decoder | None = None) -> StageCost:
        """Decoding and resizing with ``decoder``, the run's own by default."""
        chosen = decoder or self._decoder
        return _repeated(lambda group: chosen.decode(group, self._out), self._groups, len, seconds)

    def infer(self, seconds: float, size: int | None = None) -> StageCost:
        """The engine on a batch that waits in memory, of ``size`` images, the run's micro-batch by default."""
        pixels = self.pixels
        if size is not None:
            pixels = np.concatenate([pixels] * -(-size // len(pixels)))[:size]
        self._engine.infer(pixels)
        return _repeated(self._engine.infer, [pixels], len, seconds)

    def rows(self, seconds: float) -> StageCost:
        """Outputs to columns: for masks, that is the writing of PNGs."""
        return _repeated(self._rows_of, [self.outputs], lambda _: self._micro_batch, seconds)

    def sink(self, seconds: float) -> StageCost:
        """Rows to Parquet parts on the disk of ``scratch``, with the commit that ends them."""
        outcome = self._rows_of(self.outputs)
        sink = ParquetSink(self._scratch / f"sink-{time.monotonic_ns()}", spec=self._engine.spec, fingerprint="")
        meter = Meter()
        while not meter.is_over(seconds):
            meter.time(lambda: sink.write(outcome.rows, outcome.failures), self._micro_batch)
        meter.time(sink.commit, 0)
        sink.close()
        return meter.cost

    def _rows_of(self, outputs: Mapping[str, NDArray[Any]]) -> Outcome:
        return rows_from_outputs(self._engine.spec, self._batch.decoded, outputs)

    def _cached_batch(self) -> Batch:
        """One full micro-batch of pictures that decode, repeated where there are few."""
        decoded: list[Decoded] = []
        pixels: list[NDArray[np.uint8]] = []
        for group in self._groups:
            batch = self._decoder.decode(group, self._out)
            decoded += batch.decoded
            pixels.append(batch.pixels.copy())
            if len(decoded) >= self._micro_batch:
                break
        if not decoded:
            raise InputNotFoundError(
                f"None of the first {len(self._picked.encoded)} images of {self._source.describe()} decodes. There is "
                "nothing to diagnose: check the INPUT."
            )
        indices = [i % len(decoded) for i in range(self._micro_batch)]
        return Batch([decoded[i] for i in indices], np.concatenate(pixels)[indices])


def in_rounds(works: Mapping[Value, Callable[[float], StageCost]], seconds: float) -> dict[Value, list[StageCost]]:
    """Costs of each work in ROUNDS rounds, in turn A B C, A B C, ..., each for ``seconds`` in all."""
    found: dict[Value, list[StageCost]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            found[name].append(work(seconds / ROUNDS))
    return found


def relative_cost(cost: StageCost, of: Sequence[StageCost], to: Sequence[StageCost]) -> StageCost:
    """``cost`` times the median ratio of CPU times, round by round: what moves both alike cancels out."""
    ratio = statistics.median(a.cpu_s / b.cpu_s for a, b in zip(of, to, strict=True))
    return StageCost(cost.wall_s * ratio, cost.cpu_s * ratio)


def on_cpu(cost: StageCost) -> StageCost:
    """Same cost for work that never waits: what its wall clock has beyond CPU time, other processes took."""
    return replace(cost, wall_s=min(cost.wall_s, cost.cpu_s))


def _combined(costs: Sequence[StageCost]) -> StageCost:
    return StageCost(min(cost.wall_s for cost in costs), statistics.median(cost.cpu_s for cost in costs))


def _repeated(
    work: Callable[[Value], object], values: Sequence[Value], count: Callable[[Value], int], seconds: float
) -> StageCost:
    """Cost of a sample in ``work`` over ``values`` again and again; ``count`` tells the samples of a value."""
    meter = Meter()
    for value in cycle(values):
        meter.time(lambda value=value: work(value), count(value))  # type: ignore[misc]
        if meter.is_over(seconds):
            break
    return meter.cost


def _samples(source: Source) -> Iterator[Sample]:
    return (entry for entry in source if isinstance(entry, Sample))


def _disk_bytes(process: psutil.Process) -> int | None:
    try:
        return int(process.io_counters().read_bytes)
    except (AttributeError, psutil.AccessDenied):
        return None
