"""Measures one cell in a process of its own, and compares two cells in alternating rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

from .comparison import Status, SystemRow
from .entrant import Entrant, take_turns
from .measure import ratio
from .sweep_rules import QUIET_SHARE
from .systems.interface import MakeSystem

_BATCHES_PER_LANE = 2
"""Fewest batches that each lane gets in a pass: with one, nothing overlaps."""
_PROBE_IMAGES = 16
_ENOUGH = 0.5
"""Share of the wanted length below which a pass is too short to count."""


@dataclass(frozen=True, slots=True)
class CellTimer:
    """Measures systems in passes of about ``seconds`` over ``files``, taken again where a pass needs more.

    ``lanes`` is how many batches are worked on at once; ``gpu`` the ordinal of the GPU to watch. With ``cpus``, which
    the lanes can keep busy, a measurement that did not get QUIET_SHARE of them is made once more, and the less
    disturbed one counts.
    """

    files: Sequence[Path]
    lanes: int
    rounds: int
    seconds: float
    gpu: int | None
    say: Callable[[str], None]
    cpus: int | None = None

    def measure(self, make: MakeSystem, batch_size: int, expected_rate: float | None) -> SystemRow:
        """What the system of ``make`` does; ``expected_rate`` (samples/s) sets the first length of a pass."""
        if expected_rate is None:
            probe = self._row(make, self._images(batch_size, _PROBE_IMAGES), rounds=1)
            if probe.throughput is None:
                return probe
            expected_rate = probe.throughput.median
        images = self._images(batch_size, expected_rate * self.seconds)
        row = self._undisturbed(make, images)
        if row.throughput is None:
            return row
        rate = row.throughput.median
        is_long_enough = images / rate >= _ENOUGH * self.seconds
        return row if is_long_enough else self._undisturbed(make, self._images(batch_size, rate * self.seconds))

    def gain(self, half: MakeSystem, whole: MakeSystem, batch_size: int, rate: float) -> float | None:
        """Throughput of ``whole``, whose batch is ``batch_size``, over that of ``half``, in alternating rounds.

        None where one of them failed beside the other.
        """
        entrants = [Entrant("half the batch", half), Entrant(f"batch {batch_size}", whole)]
        files = self._files(self._images(batch_size, rate * self.seconds))
        take_turns(entrants, files, rounds=self.rounds, say=_silent, gpu=self.gpu)
        if any(entrant.problem is not None for entrant in entrants):
            return None
        walls = [[found.wall_s for found in entrant.rounds] for entrant in entrants]
        return ratio(walls[0], walls[1]).median

    def _undisturbed(self, make: MakeSystem, images: int) -> SystemRow:
        row = self._row(make, images, rounds=self.rounds)
        if self.cpus is None or row.throughput is None or _cpus_used(row) >= QUIET_SHARE * self.cpus:
            return row
        again = self._row(make, images, rounds=self.rounds)
        return max(row, again, key=_cpus_used)

    def _row(self, make: MakeSystem, images: int, *, rounds: int) -> SystemRow:
        entrant = Entrant("cell", make)
        take_turns([entrant], self._files(images), rounds=rounds, say=_silent, gpu=self.gpu)
        row = entrant.row(images)
        return row if row.status is Status.OK else replace(row, note=row.note or "the system failed")

    def _images(self, batch_size: int, wanted: float) -> int:
        """Images of a pass: whole batches for every lane, at least ``wanted`` where that is more."""
        at_once = batch_size * self.lanes
        return at_once * max(_BATCHES_PER_LANE, math.ceil(wanted / at_once))

    def _files(self, images: int) -> list[Path]:
        return list(islice(cycle(self.files), images))


def _cpus_used(row: SystemRow) -> float:
    """CPUs that a system kept busy, 0 where it failed."""
    if row.throughput is None or row.cpu_ms is None:
        return 0.0
    return row.throughput.median * row.cpu_ms.median / 1e3


def _silent(line: str) -> None:
    del line
