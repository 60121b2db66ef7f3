"""Watches a run from a thread of its own: host and GPU at every interval, into a file, a stream and for Prometheus.

Nothing here may end a run: what cannot be asked or written is said once, in ``notes``. One look costs about a
millisecond of CPU, and the file is written so seldom that it takes 0.1 % of the time at most.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from ..errors import UsageError, VdaliError
from ..stages import StageTime
from .file import MAX_SAMPLES, TelemetryFile, TelemetrySample
from .gpu import open_gpu_sampler
from .host import HostSampler
from .metrics import MetricsServer, metrics_text

_WRITE_SHARE = 1e-3


@dataclass(frozen=True, slots=True)
class TelemetryOptions:
    """How often to look, in seconds, and who gets the samples beside the file.

    ``write_s`` is the shortest time between two writes of the file. ``stream`` takes one JSON document for each
    sample and line; ``metrics_port`` serves Prometheus at ``metrics_host`` (0: any free port, None: no server).
    """

    interval_s: float = 1.0
    write_s: float = 10.0
    stream: TextIO | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Counts:
    """How far a run is: samples that ended in this session, and seconds per stage."""

    rows: int = 0
    failures: int = 0
    stages: Mapping[str, StageTime] = field(default_factory=dict)


class Telemetry:
    """Context manager around the part of a run to watch; the last look is taken when it is left.

    ``counts`` is called from the watching thread. ``gpus`` are CUDA ordinals, None for every GPU that the driver
    knows. Without ``path`` the samples are kept in ``samples``.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        session: int = 1,
        counts: Callable[[], Counts] = Counts,
        gpus: Sequence[int] | None = None,
        options: TelemetryOptions | None = None,
    ) -> None:
        """Check the options; raises UsageError for an interval that is not above 0."""
        self._options = options or TelemetryOptions()
        if not self._options.interval_s > 0:
            raise UsageError(f"The telemetry interval must be > 0 seconds, got {self._options.interval_s}.")
        self.notes: list[str] = []
        self.samples: list[TelemetrySample] = []
        self.interval_s = self._options.interval_s
        self.taken = 0
        self.cpu_s = 0.0
        self._path = path
        self._session = session
        self._counts = counts
        self._gpu_ordinals = gpus
        self._stream = self._options.stream
        self._file: TelemetryFile | None = None
        self._server: MetricsServer | None = None
        self._newest: TelemetrySample | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)

    @property
    def metrics_port(self) -> int | None:
        """Port that Prometheus metrics are served at, None without a server."""
        return self._server.port if self._server is not None else None

    def __enter__(self) -> Self:
        """Begin to watch; raises UsageError where the metrics port cannot be had."""
        if self._options.metrics_port is not None:
            self._server = MetricsServer(self._options.metrics_port, self._metrics, host=self._options.metrics_host)
        self._open_file()
        self._gpus, reason = open_gpu_sampler(self._gpu_ordinals)
        if reason:
            self.notes.append(f"telemetry has no GPU part: {reason}")
        self._started_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the last look and let go of everything; a second call does nothing."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.join()
        if self._server is not None:
            self._server.close()
        if self._gpus is not None:
            self._gpus.close()

    def to_json(self) -> dict[str, Any]:
        """What the telemetry itself did, for run.json."""
        return {
            "samples": self.taken,
            "interval_s": self.interval_s,
            "cpu_s": round(self.cpu_s, 4),
            "notes": list(self.notes),
        }

    def _open_file(self) -> None:
        if self._path is None:
            return
        try:
            self._file = TelemetryFile(self._path, self._session)
        except VdaliError as error:
            self.notes.append(f"telemetry is not written: {error}")
            return
        if self._file.note:
            self.notes.append(self._file.note)

    def _watch(self) -> None:
        try:
            self._host = HostSampler()
            self._watch_until_stopped()
        except Exception as error:  # whatever a system or a driver answers, the run goes on
            self.notes.append(f"telemetry ended after {self.taken} samples: {type(error).__name__}: {error}")
            with suppress(Exception):
                self._write()

    def _watch_until_stopped(self) -> None:
        due_s = time.monotonic()
        write_due_s = due_s + self._options.write_s
        last = False
        while not last:
            due_s = max(due_s + self.interval_s, time.monotonic())
            last = self._stopping.wait(due_s - time.monotonic())
            self._look()
            if last or time.monotonic() >= write_due_s:
                started = time.thread_time()
                self._write()
                pause_s = (time.thread_time() - started) / _WRITE_SHARE
                write_due_s = time.monotonic() + max(self._options.write_s, pause_s)
            self.cpu_s = time.thread_time()

    def _look(self) -> None:
        counts = self._counts()
        sample = TelemetrySample(
            session=self._session,
            time_s=time.time(),
            elapsed_s=round(time.monotonic() - self._started_s, 3),
            rows=counts.rows,
            failures=counts.failures,
            stages=counts.stages,
            host=self._host.sample(),
            gpus=self._gpus.sample() if self._gpus is not None else (),
        )
        self.samples.append(sample)
        self._newest = sample
        self.taken += 1
        self._tell(sample)
        if len(self.samples) + (len(self._file) if self._file is not None else 0) >= MAX_SAMPLES:
            self._halve()

    def _tell(self, sample: TelemetrySample) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(json.dumps(sample.to_json()) + "\n")
            self._stream.flush()
        except (OSError, ValueError) as error:  # its reader went away, or it was closed
            self._stream = None
            self.notes.append(f"telemetry lines ended: {error}")

    def _halve(self) -> None:
        """Keep every second sample and look half as often from now on."""
        self._write()
        if self._file is not None:
            self._file.halve()
        else:
            del self.samples[::2]
        self.interval_s *= 2

    def _write(self) -> None:
        if self._file is None:
            return
        try:
            self._file.write(self.samples)
        except VdaliError as error:
            note = f"telemetry was not written: {error}"
            if note not in self.notes:
                self.notes.append(note)
        self.samples.clear()

    def _metrics(self) -> str:
        return metrics_text(self._newest) if self._newest is not None else ""
