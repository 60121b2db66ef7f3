"""A sweep for people at a terminal: bars for every series, tokens, and the recommended point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..report.sweep import sweep_verdict
from ..report.words import byte_count, number, percent, seconds

_BAR = 32
Row = Mapping[str, Any]


def sweep_text(document: Mapping[str, Any]) -> str:
    """Plain lines for the document that ``sweep`` returns."""
    lines = list(_series(document["cells"]))
    lines += list(_attention(document.get("attention") or []))
    lines += [f"note: {note}" for note in document.get("notes") or []]
    return "\n".join([*lines, sweep_verdict(document)])


def _series(cells: list[Row]) -> Iterator[str]:
    top = max((_rate(cell) for cell in cells), default=0.0)
    before = ""
    for cell in cells:
        name = f"{cell['precision']}, {cell['resolution']}, {cell['decoder']}"
        if name != before:
            yield name
            before = name
        yield f"  {cell['batch_size']:>5}  {_point(cell, top)}"


def _point(cell: Row, top: float) -> str:
    rate = _rate(cell)
    if not rate:
        return str(cell.get("error"))
    bar = "█" * max(1, round(_BAR * rate / top))
    marks = [word for word in ("plateau", "recommended") if cell.get(word)]
    mark = f"  <- {', '.join(marks)}" if marks else ""
    latency = ""
    if cell["latency_p50_s"] is not None:
        latency = f"p50 {seconds(cell['latency_p50_s'])}, p99 {seconds(cell['latency_p99_s'])}, "
    memory = cell["peak_gpu_memory_bytes"] or cell["peak_memory_bytes"]
    gain = f"{cell['gain_over_half_batch']:.2f}x" if cell["gain_over_half_batch"] is not None else ""
    return (
        f"{bar:<{_BAR}} {number(rate):>7} images/s {gain:>6}  {latency}"
        f"{number(cell['cpu_ms_per_sample']['median'])} CPU-ms/image, {byte_count(memory)}{mark}"
    )


def _attention(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        yield (
            f"{row['resolution']}: {row['tokens']} tokens, attention is {percent(row['attention_share'])} of "
            f"{row['gmacs']:.2f} GMACs, {row['attention_cost_relative']:.2f}x the attention and "
            f"{row['cost_relative']:.2f}x the arithmetic of the model's own resolution"
        )


def _rate(cell: Row) -> float:
    spread = cell["throughput_samples_per_s"]
    return float(spread["median"]) if spread is not None else 0.0
