"""A sweep as curves of throughput over batch size, with the plateau and the recommended point marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .page import Chart, Series, Table
from .words import heading, number, shown

CELLS, BATCH, RATE = "cells", "batch_size", "throughput_samples_per_s"
_SERIES_KEYS = ("model", "precision", "resolution", "decoder")
_MARGIN = 0.3
"""Doublings left free on both sides, so that the outer ticks have room."""

Cell = Mapping[str, Any]


def is_sweep(value: Any) -> bool:
    """Whether ``value`` is an object whose ``cells`` are points of a sweep."""
    cells = value.get(CELLS) if isinstance(value, Mapping) else None
    return isinstance(cells, list) and any(isinstance(cell, Mapping) and BATCH in cell for cell in cells)


def sweeps_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every sweep inside a document."""
    if is_sweep(value):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from sweeps_in(item)


def sweep_blocks(cells: Sequence[Cell]) -> tuple[list[Chart], Table]:
    """One chart with a line for each setting, and all cells as a table; failed cells are rows without a rate."""
    measured = [cell for cell in cells if rate_of_cell(cell)]
    marked = frozenset(i for i, cell in enumerate(cells) if cell.get("recommended"))
    keys = list(dict.fromkeys(key for cell in cells for key, value in cell.items() if value is not None))
    rows = [[shown(key, cell.get(key)) for key in keys] for cell in cells]
    table = Table([heading(key) for key in keys], rows, marked)
    return ([_chart(measured)] if measured else []), table


def sweep_verdict(part: Mapping[str, Any]) -> str:
    """The recommended point with its reason, or the fastest one."""
    cells = part[CELLS]
    chosen = next((cell for cell in cells if cell.get("recommended")), None)
    best = chosen or max(cells, key=lambda cell: rate_of_cell(cell) or 0.0)
    if not rate_of_cell(best):
        return "no point of the sweep was measured"
    reason = part.get("reason") or best.get("reason")
    word = "recommended" if chosen is not None else "fastest"
    text = f"{word}: batch size {best[BATCH]}{_named(best, ', ')}, {number(rate_of_cell(best) or 0.0)} images/s"
    return f"{text}; {reason}" if reason else text


def _chart(cells: Sequence[Cell]) -> Chart:
    lines: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: float(cell[BATCH])):
        lines.setdefault(_named(cell, "").strip(", ") or "throughput", []).append(cell)
    batches = sorted({int(cell[BATCH]) for cell in cells})
    top = 1.05 * max(rate_of_cell(cell) or 0.0 for cell in cells)
    return Chart(
        title="Throughput over batch size",
        summary="images/s; a large dot marks the plateau or the recommended point",
        series=[
            Series(
                name=name,
                x=[math.log2(cell[BATCH]) for cell in found],
                y=[rate_of_cell(cell) or 0.0 for cell in found],
                marks=[i for i, cell in enumerate(found) if cell.get("plateau") or cell.get("recommended")],
            )
            for name, found in lines.items()
        ],
        x_range=(math.log2(batches[0]) - _MARGIN, math.log2(batches[-1]) + _MARGIN),
        top=top,
        top_text=f"{number(top)} images/s",
        ticks=[(math.log2(batch), str(batch)) for batch in batches],
        points=True,
    )


def _named(cell: Cell, before: str) -> str:
    """Settings of a cell other than its batch size."""
    found = [str(cell[key]) for key in _SERIES_KEYS if cell.get(key) is not None]
    return before + ", ".join(found) if found else ""


def rate_of_cell(cell: Cell) -> float | None:
    """Images/s of a cell, the median of its rounds; None where it failed."""
    rate = cell.get(RATE)
    if isinstance(rate, Mapping):
        rate = rate.get("median")
    return float(rate) if isinstance(rate, int | float) else None
