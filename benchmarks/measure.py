"""Medians of alternating rounds: what every number of this folder goes through.

Machines drift, so two things are compared only in pairs that ran one after the other, and the ratio of each
pair is what counts. CPU time stands beside wall-clock time: it moves less with what else the machine does.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


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

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Spread:
        return cls(float(values["min"]), float(values["median"]), float(values["max"]))

    def text(self, digits: int) -> str:
        """``median (min to max)`` with so many decimals."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def alternate(works: Mapping[str, Callable[[], T]], *, rounds: int, warmup: int = 1) -> dict[str, list[T]]:
    """What each work returns in each of ``rounds``, in turn A B C, A B C, ..., after ``warmup`` rounds not kept."""
    results: dict[str, list[T]] = {name: [] for name in works}
    for number in range(warmup + rounds):
        for name, work in works.items():
            result = work()
            if number >= warmup:
                results[name].append(result)
    return results


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Ratio of each pair, ``over[i] / under[i]``."""
    return Spread.of([a / b for a, b in zip(over, under, strict=True)])


def percentile(values: Sequence[float], share: float) -> float:
    """Smallest of ``values`` that at least ``share`` (0..1) of them do not exceed (nearest rank, as MLPerf counts)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
