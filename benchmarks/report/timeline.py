"""Telemetry as small charts over the time that a run was at work, session after session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .page import Chart, Series
from .words import byte_count, number, percent, seconds

MOST_POINTS = 240
"""Points of one line: about as many as a phone has pixels for it."""

HEADROOM = 1.1
"""Upper edge of a chart in terms of its largest value."""

Line = Mapping[str, Any]
Value = Callable[[Line, Line | None], float | None]
"""Value of a line, given the line before of the same session."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """One line of telemetry on the common time axis, with the line before of its session."""

    x: float
    line: Line
    before: Line | None


def timeline(lines: Sequence[Line]) -> list[Chart]:
    """Charts of what ``lines`` tell, those that tell nothing left out; none where there are no lines."""
    moments, breaks = _moments(lines)
    if not moments:
        return []
    charts = [
        _chart("Throughput", moments, breaks, lambda v: f"{number(v)} images/s", _rate_of("rows", "failures")),
        _chart("CPUs of the machine", moments, breaks, percent, _mean_of("cpu_busy"), top=1.0),
        _chart("CPUs used by this process", moments, breaks, number, _rate_of("process_cpu_s")),
        _chart("Waiting for disks", moments, breaks, percent, lambda line, _: line["cpu_iowait"]),
        _chart("Memory of this process", moments, breaks, byte_count, lambda line, _: line["process_rss_bytes"]),
        _chart("Read from disks", moments, breaks, _byte_rate, _rate_of("disk_read_bytes")),
        _chart("Written to disks", moments, breaks, _byte_rate, _rate_of("disk_write_bytes")),
    ]
    names = {gpu["index"]: gpu["name"] for moment in moments for gpu in moment.line["gpus"]}
    for index, name in names.items():
        charts += _gpu_charts(index, f"GPU {index} ({name})", moments, breaks)
    return [chart for chart in charts if chart is not None]


def _gpu_charts(index: int, title: str, moments: Sequence[_Moment], breaks: Sequence[float]) -> list[Chart | None]:
    def chart(what: str, text: Callable[[float], str], key: str, top: float | None = None) -> Chart | None:
        return _chart(f"{title}: {what}", moments, breaks, text, _of_gpu(index, key), top=top)

    return [
        chart("utilisation", percent, "utilisation", 1.0),
        chart("memory", byte_count, "memory_used_bytes"),
        chart("power", lambda v: f"{v:,.0f} W", "power_w"),
        chart("PCIe from the host", _byte_rate, "pcie_rx_bytes_per_s"),
        chart("PCIe to the host", _byte_rate, "pcie_tx_bytes_per_s"),
        chart("JPEG decoder", percent, "jpeg_decoder_utilisation", 1.0),
        chart("clock", lambda v: f"{v / 1e6:,.0f} MHz", "sm_clock_hz"),
    ]


def _moments(lines: Sequence[Line]) -> tuple[list[_Moment], list[float]]:
    """Lines on one axis of time at work, in seconds, and where a session follows another."""
    moments: list[_Moment] = []
    breaks: list[float] = []
    offset = 0.0
    before: Line | None = None
    for line in sorted(lines, key=lambda line: (line["session"], line["elapsed_s"])):
        if before is not None and line["session"] != before["session"]:
            offset += before["elapsed_s"]
            breaks.append(offset)
            before = None
        moments.append(_Moment(offset + line["elapsed_s"], line, before))
        before = line
    return moments, breaks


def _chart(
    title: str,
    moments: Sequence[_Moment],
    breaks: Sequence[float],
    text: Callable[[float], str],
    value: Value,
    *,
    top: float | None = None,
) -> Chart | None:
    points = [(m.x, float(v)) for m in moments if (v := value(m.line, m.before)) is not None]
    if not points or (top is None and not any(y for _, y in points)):
        return None
    ys = [y for _, y in points]
    end = moments[-1].x
    mean = _mean_over_time(points)
    highest = top if top is not None else HEADROOM * max(ys)
    return Chart(
        title=title,
        summary=_summary(text(min(ys)), text(mean), text(max(ys))),
        series=[_thinned(points)],
        x_range=(0.0, end),
        top=highest,
        top_text=text(highest),
        ticks=[(0.0, "0"), (end, seconds(end))],
        breaks=breaks,
    )


def _summary(low: str, mean: str, high: str) -> str:
    return f"{mean} throughout" if low == high else f"mean {mean}, {low} to {high}"


def _thinned(points: Sequence[tuple[float, float]]) -> Series:
    """At most MOST_POINTS means, with the smallest and largest value behind each."""
    size = -(-len(points) // MOST_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return Series(
        name="",
        x=[sum(x for x, _ in group) / len(group) for group in groups],
        y=[sum(y for _, y in group) / len(group) for group in groups],
        low=[min(y for _, y in group) for group in groups],
        high=[max(y for _, y in group) for group in groups],
    )


def _mean_over_time(points: Sequence[tuple[float, float]]) -> float:
    """Mean of y, each weighed by the time since the point before."""
    weights = [points[0][0], *(max(0.0, b[0] - a[0]) for a, b in pairwise(points))]
    total = sum(weights)
    return sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total if total else points[0][1]


def _rate_of(*keys: str) -> Value:
    """Growth per second of the sum of counters that start at 0 with the session."""

    def rate(line: Line, before: Line | None) -> float | None:
        if any(line[key] is None for key in keys):
            return None
        grown = sum(line[key] - (before[key] if before is not None else 0) for key in keys)
        passed = line["elapsed_s"] - (before["elapsed_s"] if before is not None else 0.0)
        return max(0.0, grown / passed) if passed > 0 else None

    return rate


def _mean_of(key: str) -> Value:
    return lambda line, _: sum(line[key]) / len(line[key]) if line[key] else None


def _of_gpu(index: int, key: str) -> Value:
    return lambda line, _: next((gpu[key] for gpu in line["gpus"] if gpu["index"] == index), None)


def _byte_rate(value: float) -> str:
    return f"{byte_count(value)}/s"
