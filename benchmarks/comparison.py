"""What a comparison found: one row for each system, and who wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from .measure import Spread

LOADING = "load"
"""Task of a comparison of loaders, which have no model."""


class Status(StrEnum):
    """Whether a row's numbers count: a wrong answer is no answer, however fast."""

    OK = "ok"
    WRONG = "wrong"
    FAILED = "failed"
    ABSENT = "absent"


class Winner(StrEnum):
    """Who is faster in every round, where one is."""

    OURS = "vdali"
    THEIRS = "other"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class SystemRow:
    """What one system did. Without numbers (``throughput`` is None) it failed or is absent, and ``note`` says why.

    Throughput is in samples/s of wall clock, CPU time in ms of all its processes. Latency is that of a batch in
    seconds, from its first byte asked for to its results handed over, over all rounds. ``ours_over_this`` is vdali's
    throughput over this one's, pair by pair; ``cpu_of_this_over_ours`` the same for CPU time. Agreement with the
    reference is ``lowest_cosine`` over the images, or for loaders ``worst_difference_levels`` (mean over an image's
    pixels, 0..255); ``worst_image`` is the one that has it. A row that does not compete stands there for orientation.
    """

    system: str
    status: Status
    note: str = ""
    description: str = ""
    throughput: Spread | None = None
    cpu_ms: Spread | None = None
    latency_p50_s: float | None = None
    latency_p99_s: float | None = None
    peak_memory_bytes: int | None = None
    gpu_utilisation: float | None = None
    gpu_memory_bytes: int | None = None
    ours_over_this: Spread | None = None
    cpu_of_this_over_ours: Spread | None = None
    lowest_cosine: float | None = None
    median_cosine: float | None = None
    worst_difference_levels: float | None = None
    worst_image: str | None = None
    competes: bool = True

    @property
    def winner(self) -> Winner:
        """Who wins between vdali and this system; neither where their rounds overlap or there is nothing to compare."""
        if self.ours_over_this is None or self.status is not Status.OK:
            return Winner.NEITHER
        if self.ours_over_this.low > 1:
            return Winner.OURS
        return Winner.THEIRS if self.ours_over_this.high < 1 else Winner.NEITHER

    def to_json(self) -> dict[str, Any]:
        values = {_JSON_KEYS.get(name, name): _plain(getattr(self, name)) for name in self.__slots__}
        return values | {"winner": self.winner.value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SystemRow:
        found: dict[str, Any] = {name: values[_JSON_KEYS.get(name, name)] for name in cls.__slots__}
        for name in _SPREADS:
            found[name] = Spread.from_json(found[name]) if found[name] is not None else None
        return cls(**found | {"status": Status(found["status"])})


_SPREADS = ("throughput", "cpu_ms", "ours_over_this", "cpu_of_this_over_ours")
_JSON_KEYS = {"throughput": "throughput_samples_per_s", "cpu_ms": "cpu_ms_per_sample"}


def _plain(value: Any) -> Any:
    return value.to_json() if isinstance(value, Spread) else value


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """Systems over the same files, model and batch size; ``ours`` and ``reference`` name rows.

    ``reference`` is the system whose outputs the others were held against, None where fewer than two gave any.
    ``resolution`` is what goes into the model, WIDTHxHEIGHT. ``cpus_used_by_others_share`` (0..1) of the CPUs was used
    by other processes during the rounds.
    """

    model: str
    task: str
    weights: str
    images: int
    input_bytes: int
    batch_size: int
    rounds: int
    device: str
    cpus: int
    ours: str
    reference: str | None
    rows: tuple[SystemRow, ...] = field(default=())
    cpus_used_by_others_share: float | None = None
    resolution: str | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON form, units in the keys."""
        return asdict(self) | {"rows": [row.to_json() for row in self.rows]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ComparisonReport:
        return cls(**dict(values) | {"rows": tuple(SystemRow.from_json(row) for row in values["rows"])})
