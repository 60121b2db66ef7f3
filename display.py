"""What a person sees of a run: progress while it goes on, a summary at the end. All of it on stderr."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar

from .engine.report import Progress, RunReport

LINE_INTERVAL_S = 10.0


class ProgressDisplay:
    """Bar on a terminal, otherwise one plain line every ``interval_s`` seconds; nothing where stderr is closed."""

    def __init__(self, *, stream: TextIO | None = None, interval_s: float = LINE_INTERVAL_S) -> None:
        self._stream: TextIO | None = stream if stream is not None else sys.stderr
        self._interval_s = interval_s
        self._shown_s = time.monotonic()
        self._bar: Bar | None = None
        self._task = 0

    def __enter__(self) -> Self:
        if self._stream is not None and self._stream.isatty():
            self._bar = Bar(
                SpinnerColumn(),
                BarColumn(bar_width=12),
                TextColumn("{task.fields[state]}", markup=False),
                console=Console(file=self._stream),
                transient=True,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task("run", total=None, state="starting")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, progress: Progress) -> None:
        if self._bar is not None:
            done = progress.already_done + progress.ended
            self._bar.update(self._task, completed=done, total=progress.total, state=line_of(progress))  # type: ignore[arg-type]
            return
        now = time.monotonic()
        if self._stream is not None and now - self._shown_s >= self._interval_s:
            self._shown_s = now
            print(line_of(progress), file=self._stream, flush=True)


def line_of(progress: Progress) -> str:
    """One line: how many of how many, failures, rate, time left."""
    done = progress.already_done + progress.ended
    of = f" of {progress.total:,}" if progress.total is not None else f", {progress.listed:,} listed so far"
    left = f", {duration(progress.remaining_s)} left" if progress.remaining_s is not None else ""
    return f"{done:,}{of}; {progress.failures:,} failures; {progress.throughput:,.1f} images/s{left}"


def duration(seconds: float) -> str:
    """Length of time for people: 42 s, 3 min 20 s, 5 h 12 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def summary_of(report: RunReport) -> str:
    """Summary of a session, a few plain lines."""
    if report.status == "already_finished":
        return (
            f"Nothing to do: {report.out} is finished ({report.rows_total:,} rows, "
            f"{report.failures_total:,} failures). The INPUT was not listed again: --rescan does that, "
            "--retry-failures tries failed samples again."
        )
    lines = [_counts_line(report), _used_line(report)]
    if report.stages:
        lines.append("  " + _stage_line(report))
    for title, counts in (("failures", report.failures_by_kind), ("ignored", report.ignored)):
        if counts:
            lines.append(f"  {title}: {_counted(counts)}")
    if report.salvaged:
        lines.append(f"  salvaged: {report.salvaged:,} truncated pictures became rows flagged `salvaged`")
    lines += [f"  {note}" for note in report.telemetry.get("notes", ())]
    lines.append(f"  {report.out}: {report.rows_total:,} rows, {report.failures_total:,} failures in all")
    gone = report.rows_total + report.failures_total - report.progress.listed
    if report.status == "finished" and gone > 0:
        lines.append(f"  of these, {gone:,} are of entries that this session did not find in the INPUT any more")
    return "\n".join(lines)


def labels_table(out: Path) -> str:
    """Ids, names and scores of the classify rows in ``out``, as plain lines; empty for other tasks."""
    import pyarrow.parquet as pq

    table = pq.read_table(out / "rows")
    if "label" not in table.column_names:
        return ""
    names = table["name"].to_pylist() if "name" in table.column_names else table["label"].to_pylist()
    rows = zip(table["id"].to_pylist(), names, table["score"].to_pylist(), strict=True)
    lines = [f"{'id':24} {'label':24} score"]
    lines += [f"{sample_id:24} {name!s:24} {score:.2f}" for sample_id, name, score in rows]
    return "\n".join(lines)


def _counts_line(report: RunReport) -> str:
    progress = report.progress
    before = f" ({progress.already_done:,} done before)" if progress.already_done else ""
    cost = f", {1e3 * report.cpu_s / progress.ended:.2f} CPU-ms/image" if progress.ended else ""
    return (
        f"{report.status}: {progress.rows:,} rows, {progress.failures:,} failures{before} in "
        f"{progress.elapsed_s:.1f} s: {progress.throughput:,.1f} images/s{cost}"
    )


def _used_line(report: RunReport) -> str:
    used = report.used
    return (
        f"  {used.model} {used.precision} (weights: {used.weights}) on {used.engine}; {used.reason}\n  decoder "
        f"{used.decoder} ({_counted(report.decoded_by) or 'nothing decoded'}); {used.lanes} lanes x "
        f"{used.threads_per_lane} thread, micro-batch {used.micro_batch}"
    )


def _stage_line(report: RunReport) -> str:
    spent = {name: time.cpu_s for name, time in report.stages.items()}
    total = sum(spent.values()) or 1.0
    shares = ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in spent.items())
    return f"CPU time of the lanes: {shares}; sink {report.sink_s:.2f} s"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
