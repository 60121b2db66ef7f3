"""What a run did: counts, what was really used, and where the time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .stages import StageTime


@dataclass(slots=True)
class Progress:
    """Counts of this session so far; ``total`` is None while the listing is not finished."""

    listed: int = 0
    already_done: int = 0
    rows: int = 0
    failures: int = 0
    total: int | None = None
    elapsed_s: float = 0.0

    @property
    def ended(self) -> int:
        """Samples that ended in this session."""
        return self.rows + self.failures

    @property
    def throughput(self) -> float:
        """Samples per second of wall clock in this session."""
        return self.ended / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Seconds to the end at this rate, or None while the total or the rate is unknown."""
        if self.total is None or not self.ended:
            return None
        return max(0, self.total - self.already_done - self.ended) / self.throughput


@dataclass(frozen=True, slots=True)
class Used:
    """What the session really used, and why."""

    engine: str
    reason: str
    decoder: str
    model: str
    weights: str
    precision: str
    batch_size: int
    micro_batch: int
    lanes: int
    threads_per_lane: int
    device: str = "cpu"
    depth: int = 2
    slots: int = 1


@dataclass(slots=True)
class RunReport:
    """Result of one session of a run.

    ``status`` is finished, already_finished, interrupted, failed or no_input. ``rows_total`` and
    ``failures_total`` count what the part files of OUT hold; ``progress`` counts this session alone.
    ``telemetry`` is what the watching itself did (``Telemetry.to_json``).
    """

    out: Path
    status: str
    used: Used
    progress: Progress
    rows_total: int = 0
    failures_total: int = 0
    failures_by_kind: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    decoded_by: Counter[str] = field(default_factory=Counter)
    salvaged: int = 0
    cpu_s: float = 0.0
    sink_s: float = 0.0
    peak_rss_bytes: int = 0
    stages: dict[str, StageTime] = field(default_factory=dict)
    source: str = ""
    telemetry: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """JSON form of the whole: what OUT holds, what was used, and this session."""
        return {
            "out": str(self.out),
            "status": self.status,
            "rows": self.rows_total,
            "failures": self.failures_total,
            "used": asdict(self.used),
            "session": self.to_json(),
        }

    def to_json(self) -> dict[str, Any]:
        """JSON form of this session, units in the keys."""
        ended = self.progress.ended
        return {
            "status": self.status,
            "source": self.source,
            "listed": self.progress.listed,
            "already_done": self.progress.already_done,
            "rows": self.progress.rows,
            "failures": self.progress.failures,
            "failures_by_kind": dict(self.failures_by_kind),
            "ignored": dict(self.ignored),
            "decoded_by": dict(self.decoded_by),
            "salvaged": self.salvaged,
            "elapsed_s": round(self.progress.elapsed_s, 4),
            "throughput_samples_per_s": round(self.progress.throughput, 2),
            "cpu_ms_per_sample": round(1e3 * self.cpu_s / ended, 4) if ended else None,
            "cpu_s": round(self.cpu_s, 4),
            "sink_s": round(self.sink_s, 4),
            "peak_rss_bytes": self.peak_rss_bytes,
            "stages": {
                name: {"wall_s": round(time.wall_s, 4), "cpu_s": round(time.cpu_s, 4), "calls": time.calls}
                for name, time in self.stages.items()
            },
            "telemetry": dict(self.telemetry),
        }
