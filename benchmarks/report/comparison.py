"""A comparison of systems as bars, a table and a sentence for each rival."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..comparison import LOADING, ComparisonReport, Status, SystemRow
from ..render import verdicts
from .page import Bar, Bars, Block, Facts, Section, Table, Text
from .words import heading, number, shown

MESSAGE_CHARACTERS = 120
_BELOW = frozenset({"description", "worst_image", "winner", "competes"})
"""What a row has that does not go into the table."""

_MARKS = frozenset({"ours", "reference", "rows"})


def is_comparison(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() >= _MARKS


def comparison_section(part: Mapping[str, Any]) -> Section:
    """Rates as bars, those that do not count in the weaker colour, then everything as a table."""
    report = ComparisonReport.from_json(part)
    fastest = _fastest(report)
    bars = [_bar(row, row is fastest) for row in report.rows]
    rows = [{name: value for name, value in row.items() if name not in _BELOW} for row in part["rows"]]
    marked = frozenset({report.rows.index(fastest)} if fastest is not None else ())
    facts = [(heading(name), shown(name, value)) for name, value in part.items() if name != "rows"]
    facts += [(row.system, row.description) for row in report.rows if row.description]
    blocks: list[Block] = [Bars(bars), Text(verdicts(report)), table_of(rows, marked=marked), Facts(facts)]
    task = "" if report.task == LOADING else f", {report.task}"
    return Section(f"{report.model}{task}: images/s", blocks)


def comparison_verdict(part: Mapping[str, Any]) -> str:
    """One sentence: what ours is worth against each rival, and who does not count."""
    report = ComparisonReport.from_json(part)
    ratios = [
        f"{row.ours_over_this.median:.2f}x the rate of {row.system}"
        for row in report.rows
        if row.ours_over_this is not None and row.status is Status.OK and row.competes
    ]
    others = [f"{row.system} {row.status}" for row in report.rows if row.status is not Status.OK]
    text = f"{report.model}: {report.ours} has {', '.join(ratios)}" if ratios else f"{report.model}: nothing to compare"
    return text + (f" (not counted: {', '.join(others)})" if others else "")


def table_of(rows: Sequence[Mapping[str, Any]], *, marked: frozenset[int] = frozenset()) -> Table:
    """Objects as a table with a column for every key that any of them has a value for."""
    keys = list(dict.fromkeys(key for row in rows for key, value in row.items() if value not in (None, "")))
    return Table(
        [heading(str(key)) for key in keys], [[shown(str(key), row.get(key)) for key in keys] for row in rows], marked
    )


def comparisons_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every comparison inside a document, the outer ones first."""
    if is_comparison(value):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from comparisons_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from comparisons_in(item)


def _bar(row: SystemRow, is_fastest: bool) -> Bar:
    texts = []
    if row.throughput is not None:
        low, median, high = row.throughput.low, row.throughput.median, row.throughput.high
        texts.append(f"{number(median)} ({number(low)} to {number(high)}) images/s")
    if row.status is not Status.OK:
        texts.append(f"{row.status}: {row.note[:MESSAGE_CHARACTERS]}" if row.note else row.status.value)
    value = row.throughput.median if row.throughput is not None else 0.0
    return Bar(row.system, value, "; ".join(texts), None if row.status is Status.OK else 0.0, is_fastest)


def _fastest(report: ComparisonReport) -> SystemRow | None:
    """Row with the highest median rate among those that compete, ours included, and gave right results."""
    right = [
        row
        for row in report.rows
        if row.status is Status.OK and row.throughput is not None and (row.competes or row.system == report.ours)
    ]
    return max(right, key=lambda row: row.throughput.median if row.throughput is not None else 0.0, default=None)
