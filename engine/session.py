"""One sitting of a run: counts what passes, enforces the failure limits, tells progress."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .batch import Failure, Outcome, Rows, Sample
from .errors import InputNotFoundError, TooManyFailuresError
from .pipeline import run as run_pipeline
from .report import Progress, RunReport
from .scheduler import Scheduler
from .sinks.interface import Sink
from .sources.interface import Source
from .total import TotalInBackground

RETRYABLE_IN_A_ROW = 1000
"""So many retryable failures one after another, with no row between, mean that the fault is not the samples'."""

MESSAGE_CHARACTERS = 300


class Session:
    """Counts what passes, enforces the failure limit, tells progress."""

    def __init__(
        self,
        source: Source,
        report: RunReport,
        scheduler: Scheduler,
        *,
        on_progress: Callable[[Progress], None] | None,
        total_from: Iterable[Any] | None,
        earlier_failures: int,
        max_failures: int | None,
        may_be_empty: bool,
    ) -> None:
        self._source = source
        self._report = report
        self._max_failures = max_failures
        self._may_be_empty = may_be_empty
        self._scheduler = scheduler
        self._on_progress = on_progress
        self._earlier_failures = earlier_failures
        self._retryable_in_a_row = 0
        self._total_from = total_from
        self._total: TotalInBackground | None = None
        self._started_s = time.perf_counter()

    def run(self, sink: Sink, micro_batch: int) -> None:
        timed = _TimedSink(sink)
        cpu = time.process_time()
        if self._total_from is not None:
            self._total = TotalInBackground(self._total_from)
        try:
            check_failures(self._earlier_failures, self._max_failures, self._report.out)
            run_pipeline(
                self._counted(self._source, timed),
                self._scheduler,
                timed,
                batch_size=micro_batch,
                on_outcome=self._count,
            )
            self._report.status = "finished"
        except KeyboardInterrupt:
            self._report.status = "interrupted"
        finally:
            if self._total is not None:
                self._total.stop()
            self._update()
            self._report.cpu_s = time.process_time() - cpu
            self._report.sink_s = timed.seconds
            self._report.stages = self._scheduler.times()
            self._report.ignored = Counter(self._source.ignored)
            self._report.peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._check_not_empty()

    def _counted(self, source: Source, sink: Sink) -> Iterator[Sample | Failure]:
        """Entries that are not done yet; all are counted as listed."""
        progress = self._report.progress
        for entry in source:
            progress.listed += 1
            if sink.is_done(entry):
                progress.already_done += 1
                if progress.already_done % 1024 == 0:
                    self._update()
            else:
                yield entry

    def _count(self, outcome: Outcome) -> None:
        report = self._report
        report.progress.rows += len(outcome.rows)
        report.progress.failures += len(outcome.failures)
        report.decoded_by.update(outcome.decoded_by)
        report.failures_by_kind.update(f"{failure.stage}/{failure.kind}" for failure in outcome.failures)
        if len(outcome.rows):
            report.salvaged += int(sum(outcome.rows.columns["salvaged"]))
        self._update()
        self._check_failures(outcome)

    def _update(self) -> None:
        progress = self._report.progress
        progress.elapsed_s = time.perf_counter() - self._started_s
        if self._total is not None:
            progress.total = self._total.value
        if self._on_progress is not None:
            self._on_progress(progress)

    def _check_failures(self, outcome: Outcome) -> None:
        failures = self._report.progress.failures + self._earlier_failures
        check_failures(failures, self._max_failures, self._report.out, outcome.failures)
        if len(outcome.rows):
            self._retryable_in_a_row = 0
        self._retryable_in_a_row += sum(failure.retryable for failure in outcome.failures)
        if self._retryable_in_a_row >= RETRYABLE_IN_A_ROW:
            raise TooManyFailuresError(
                f"{self._retryable_in_a_row:,} samples in a row failed for a reason that may pass; the last: "
                f"{_last(outcome.failures)}. All so far is in {self._report.out}. Run the same command again when it "
                "has passed."
            )

    def _check_not_empty(self) -> None:
        report = self._report
        if report.status == "finished" and report.progress.listed == 0 and not self._may_be_empty:
            report.status = "failed"
            seen = ", ".join(f"{count:,} {reason}" for reason, count in report.ignored.most_common(12)) or "nothing"
            raise InputNotFoundError(
                f"No image in {report.source}. Looked for names with an image's extension or files that begin as an "
                f"image does; seen: {seen}. Check the INPUT."
            )


class _TimedSink:
    """Passes all on to a sink and adds up the seconds spent there."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.seconds = 0.0
        self.is_done = sink.is_done
        self.close = sink.close

    def write(self, rows: Rows, failures: Sequence[Failure]) -> None:
        started = time.perf_counter()
        self._sink.write(rows, failures)
        self.seconds += time.perf_counter() - started

    def commit(self) -> None:
        started = time.perf_counter()
        self._sink.commit()
        self.seconds += time.perf_counter() - started


def check_failures(failures: int, allowed: int | None, out: Path, latest: Sequence[Failure] = ()) -> None:
    """Raise TooManyFailuresError when more samples have failed than ``allowed``; ``latest`` may hold the last ones."""
    if allowed is None or failures <= allowed:
        return
    last = f"; the last: {_last(latest)}" if latest else ""
    raise TooManyFailuresError(
        f"{failures:,} samples have failed, {allowed:,} are allowed{last}. All so far is in {out}. Mend the input and "
        "run the same command with --retry-failures, or raise --max-failures."
    )


def _last(failures: Sequence[Failure]) -> str:
    failure = failures[-1]
    return f"{failure.id}: {failure.message}"[:MESSAGE_CHARACTERS].rstrip(".")
