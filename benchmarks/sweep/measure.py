"""Measures one cell in a process of its own, and compares two cells in alternating rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

from ..comparison import Status, SystemRow
from ..entrant import Entrant, take_turns
from ..measure import ratio
from ..render import MUCH_ELSEWHERE
from ..systems.interface import MakeSystem

_BATCHES_PER_LANE = 2
"""Fewest batches that each lane gets in a pass: with one, nothing overlaps."""
_PROBE_IMAGES = 16
_ENOUGH = 0.5
"""Share of the wanted length below which a pass is too short to count."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a system did, and the share (0..1) of the CPUs that other processes used meanwhile, where that is known."""

    row: SystemRow
    others_share: float | None = None

    @property
    def is_disturbed(self) -> bool:
        return self.others_share is not None and self.others_share > MUCH_ELSEWHERE


@dataclass(frozen=True, slots=True)
class CellTimer:
    """Measures systems in passes of about ``seconds`` over ``files``, taken again where a pass needs more.

    ``lanes`` is how many batches are worked on at once; ``gpu`` the ordinal of the GPU to watch. A measurement
    during which other processes used more than MUCH_ELSEWHERE of the CPUs is made once more, and the less disturbed
    one counts.
    """

    files: Sequence[Path]
    lanes: int
    rounds: int
    seconds: float
    gpu: int | None

    def measure(self, make: MakeSystem, batch_size: int, expected_rate: float | None) -> Measured:
        """What the system of ``make`` does; ``expected_rate`` (samples/s) sets the first length of a pass."""
        if expected_rate is None:
            probe = self._measured(make, self._images(batch_size, _PROBE_IMAGES), rounds=1)
            if probe.row.throughput is None:
                return probe
            expected_rate = probe.row.throughput.median
        images = self._images(batch_size, expected_rate * self.seconds)
        found = self._undisturbed(make, images)
        if found.row.throughput is None:
            return found
        rate = found.row.throughput.median
        is_long_enough = images / rate >= _ENOUGH * self.seconds
        return found if is_long_enough else self._undisturbed(make, self._images(batch_size, rate * self.seconds))

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

    def _undisturbed(self, make: MakeSystem, images: int) -> Measured:
        found = self._measured(make, images, rounds=self.rounds)
        if found.row.throughput is None or not found.is_disturbed:
            return found
        again = self._measured(make, images, rounds=self.rounds)
        is_better = again.row.throughput is not None and (again.others_share or 0.0) < (found.others_share or 0.0)
        return again if is_better else found

    def _measured(self, make: MakeSystem, images: int, *, rounds: int) -> Measured:
        entrant = Entrant("cell", make)
        others = take_turns([entrant], self._files(images), rounds=rounds, say=_silent, gpu=self.gpu)
        row = entrant.row(images)
        return Measured(row if row.status is Status.OK else replace(row, note=row.note or "the system failed"), others)

    def _images(self, batch_size: int, wanted: float) -> int:
        """Images of a pass: whole batches for every lane, at least ``wanted`` where that is more."""
        at_once = batch_size * self.lanes
        return at_once * max(_BATCHES_PER_LANE, math.ceil(wanted / at_once))

    def _files(self, images: int) -> list[Path]:
        return list(islice(cycle(self.files), images))


def _silent(line: str) -> None:
    del line
