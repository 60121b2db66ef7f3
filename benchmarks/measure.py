"""Medians of alternating rounds: what every number of this folder goes through.

Machines drift, so two things are compared only in pairs that ran one after the other, and the ratio of each
pair is what counts. CPU time stands beside wall-clock time: it moves less with what else the machine does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one round: wall clock, and CPU of all threads of the process."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, median and maximum of some rounds."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(min(values), statistics.median(values), max(values))

    def to_json(self) -> dict[str, float]:
        return {"min": self.low, "median": self.median, "max": self.high}


def timed(work: Callable[[], object]) -> Timing:
    """Run ``work`` once."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Timing(time.perf_counter() - wall, time.process_time() - cpu)


def alternate(works: Mapping[str, Callable[[], object]], *, rounds: int, warmup: int = 1) -> dict[str, list[Timing]]:
    """``rounds`` timings of each work, in turn A B C, A B C, ... after ``warmup`` untimed rounds."""
    for _ in range(warmup):
        for work in works.values():
            work()
    timings: dict[str, list[Timing]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            timings[name].append(timed(work))
    return timings


def rates(timings: Sequence[Timing], count: int) -> Spread:
    """Samples per second of wall clock."""
    return Spread.of([count / timing.wall_s for timing in timings])


def cpu_ms(timings: Sequence[Timing], count: int) -> Spread:
    """CPU milliseconds per sample."""
    return Spread.of([1e3 * timing.cpu_s / count for timing in timings])


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Ratio of each pair, ``over[i] / under[i]``."""
    return Spread.of([a / b for a, b in zip(over, under, strict=True)])
