"""A run as arithmetic: what each stage costs a sample, what limits the rate, and what another setting would give.

Closed forms of the steady state. Every stage has a cost per sample; a resource that serves ``capacity`` samples at a
time and keeps each for ``s`` seconds passes at most ``capacity / s`` samples a second; the smallest of these limits is
the rate. Nothing here measures anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

FORMAT_VERSION = 1
"""Version of a diagnosis' JSON form."""


class Resource(StrEnum):
    """What can hold a run back."""

    CPU = "CPU"
    DISK = "disk or network"
    LANES = "lanes"
    PCIE = "PCIe"
    GPU = "GPU compute"
    SINK = "sink"
    LISTING = "listing"


LISTING, READ, DECODE, UPLOAD, INFER, DOWNLOAD, ROWS, SINK = (
    "listing",
    "read",
    "decode",
    "host-to-device",
    "engine",
    "device-to-host",
    "rows",
    "sink",
)
"""Stages in the order of the data path."""

_SINGLE = {
    LISTING: Resource.LISTING,
    SINK: Resource.SINK,
    UPLOAD: Resource.PCIE,
    DOWNLOAD: Resource.PCIE,
    INFER: Resource.GPU,
    DECODE: Resource.GPU,
}

MUCH_WAITING = 0.3
"""Share of a lane's time from which on waiting, not the number of lanes, is what holds it back."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Seconds that one sample takes in a stage by itself: on the wall clock, and on all CPUs together."""

    wall_s: float
    cpu_s: float

    @property
    def waiting_s(self) -> float:
        return max(0.0, self.wall_s - self.cpu_s)


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate (samples/s) that cannot be passed, the resource behind it and the stage that uses it most."""

    throughput: float
    resource: Resource
    stage: str


@dataclass(frozen=True, slots=True)
class PipelineModel:
    """How stages share lanes, CPUs and single resources.

    ``turns`` are stages that take turns on one stream of each of the ``lanes``; ``single`` are stages that take turns
    on something of which the run has only one: the thread that lists and writes, the GPU, one direction of the bus.
    ``depth`` is the number of batches that a lane has in work at a time: 1 where all its stages take turns.
    """

    costs: Mapping[str, StageCost]
    lanes: int
    cpus: float
    turns: Sequence[Sequence[str]]
    single: Sequence[Sequence[str]] = ((LISTING, SINK),)
    depth: int = 1

    @property
    def cpu_s(self) -> float:
        """CPU seconds of one sample in all stages."""
        return sum(cost.cpu_s for cost in self.costs.values())

    @property
    def throughput(self) -> float:
        """Samples per second in the steady state."""
        return self.limit.throughput

    @property
    def limit(self) -> Limit:
        """The smallest limit; the CPUs where lanes are used up at nearly the same rate as they."""
        limits = self.limits()
        smallest = min(limits, key=lambda limit: limit.throughput)
        cpu = limits[0]
        if smallest.resource is Resource.LANES and cpu.throughput <= 1.1 * smallest.throughput:
            return replace(cpu, throughput=smallest.throughput)
        return smallest

    def limits(self) -> list[Limit]:
        """Every limit: all CPUs, each stream of the lanes, each single resource."""
        lanes = [self._lane_limit(stages) for turn in self.turns if (stages := self._known(turn))]
        single = [self._single_limit(stages) for turn in self.single if (stages := self._known(turn))]
        return [self._cpu_limit(), *lanes, *single]

    def cpu_share(self, stage: str) -> float:
        """Part of the CPU time (0..1) that goes to ``stage``."""
        return self.costs[stage].cpu_s / self.cpu_s if stage in self.costs and self.cpu_s else 0.0

    def alone(self, stage: str) -> float:
        """Samples per second if the machine had nothing but ``stage`` to do."""
        only = replace(self, costs={stage: self.costs[stage]})
        return min(limit.throughput for limit in only.limits())

    def _cpu_limit(self) -> Limit:
        most = max(self.costs, key=lambda stage: self.costs[stage].cpu_s)
        return Limit(_rate(self.cpus, self.cpu_s), Resource.CPU, most)

    def _lane_limit(self, stages: Sequence[str]) -> Limit:
        wall_s = sum(self.costs[stage].wall_s for stage in stages)
        most = max(stages, key=lambda stage: self.costs[stage].waiting_s)
        if self.costs[most].waiting_s > MUCH_WAITING * wall_s:
            return Limit(_rate(self.lanes, wall_s), Resource.DISK if most == READ else Resource.LANES, most)
        most = max(stages, key=lambda stage: self.costs[stage].wall_s)
        return Limit(_rate(self.lanes, wall_s), Resource.LANES, most)

    def _single_limit(self, stages: Sequence[str]) -> Limit:
        most = max(stages, key=lambda stage: self.costs[stage].wall_s)
        return Limit(_rate(1, sum(self.costs[stage].wall_s for stage in stages)), _SINGLE[most], most)

    def _known(self, turn: Sequence[str]) -> list[str]:
        return [stage for stage in turn if stage in self.costs]


def _rate(capacity: float, seconds: float) -> float:
    return capacity / seconds if seconds > 0 else float("inf")
