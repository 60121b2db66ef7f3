"""Measures a whole run, from a source to part files, for a few seconds and under telemetry."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..batch import Failure, Outcome, Sample
from ..pipeline import run
from ..scheduler import Scheduler
from ..sinks.parquet import ParquetSink
from ..sources.interface import Source
from ..spec import ModelSpec
from ..stages import StageTime
from ..telemetry.file import TelemetrySample
from ..telemetry.watch import Telemetry, TelemetryOptions

ROUNDS_OF_A_LANE = 10
PATIENCE = 5.0
_TELEMETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class Whole:
    """One real run: samples that ended, seconds, CPU seconds of the process, time per stage, what telemetry saw."""

    samples: int
    elapsed_s: float
    cpu_s: float
    stages: Mapping[str, StageTime]
    telemetry: Sequence[TelemetrySample]

    @property
    def throughput(self) -> float:
        return self.samples / self.elapsed_s


def measure_whole(
    source: Source,
    scheduler: Scheduler,
    spec: ModelSpec,
    *,
    lanes: int,
    micro_batch: int,
    seconds: float,
    scratch: Path,
    gpus: Sequence[int] | None = None,
) -> Whole:
    """A run of ``source``, again from its start where it ends too soon, into Parquet parts in ``scratch``.

    It goes on until every lane has had ROUNDS_OF_A_LANE batches, so that filling and emptying the lanes weighs little,
    but not beyond PATIENCE times ``seconds``. ``gpus`` are watched besides.
    """
    entries = _Entries(source, seconds, least=ROUNDS_OF_A_LANE * lanes * micro_batch)
    sink = ParquetSink(scratch / f"whole-{time.monotonic_ns()}", spec=spec, fingerprint="")
    samples = 0

    def count(outcome: Outcome) -> None:
        nonlocal samples
        samples += len(outcome.rows) + len(outcome.failures)

    cpu_s = time.process_time()
    with Telemetry(None, gpus=gpus, options=TelemetryOptions(interval_s=_TELEMETRY_S)) as telemetry:
        run(entries, scheduler, sink, batch_size=micro_batch, on_outcome=count)
        elapsed_s = time.perf_counter() - entries.started_s
        cpu_s = time.process_time() - cpu_s
    sink.close()
    return Whole(samples, elapsed_s, cpu_s, scheduler.times(), telemetry.samples)


class _Entries:
    """Entries of a source for some seconds and at least so many, from its start again where it ends.

    The clock starts with the first entry.
    """

    def __init__(self, source: Source, seconds: float, least: int) -> None:
        self._source = source
        self._seconds = seconds
        self._least = least
        self.started_s = 0.0

    def __iter__(self) -> Iterator[Sample | Failure]:
        count = before = 0
        while True:
            for entry in self._source:
                self.started_s = self.started_s or time.perf_counter()
                if self._is_over(count):
                    return
                count += 1
                yield entry
            if count == before:  # nothing is left of the source
                return
            before = count

    def _is_over(self, count: int) -> bool:
        passed_s = time.perf_counter() - self.started_s
        return passed_s > (self._seconds if count >= self._least else PATIENCE * self._seconds)
