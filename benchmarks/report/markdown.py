"""A report page as Markdown (GitHub's), with charts as tables of their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from .page import Bar, Bars, Block, Chart, Charts, Facts, Page, Table, Text
from .words import number

BAR_CHARACTERS = 24

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~$])")


def markdown_of(page: Page) -> str:
    """The whole document."""
    parts = [f"# {_plain(page.title)}", _plain(page.subtitle)]
    if page.verdict:
        parts.append(f"> **{_plain(page.verdict)}**")
    for section in page.sections:
        parts += [f"## {_plain(section.title)}", *(_block(block) for block in section.blocks)]
    if page.notes:
        parts += ["## Notes", "\n".join(f"- {_plain(note)}" for note in page.notes)]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Text():
            return "\n\n".join(_plain(paragraph) for paragraph in block.paragraphs)
        case Facts():
            return _table_of(("what", "value"), block.rows)
        case Table():
            marked = [("**", "**") if number in block.marked else ("", "") for number in range(len(block.rows))]
            rows = [
                [f"{before}{_plain(cell)}{after}" for cell in row]
                for (before, after), row in zip(marked, block.rows, strict=True)
            ]
            return _lines([_plain(name) for name in block.columns], rows)
        case Bars():
            return _bars(block)
        case Charts():
            return "\n\n".join(_charts(block.charts))


def _bars(bars: Bars) -> str:
    longest = max((bar.value for bar in bars.bars), default=0.0) or 1.0
    rows = [[_plain(bar.label), _drawn(bar, longest), _plain(bar.text)] for bar in bars.bars]
    legend = f"\n\n`█` {_plain(bars.parts[0])}, `░` {_plain(bars.parts[1])}" if bars.parts is not None else ""
    return _lines(["", "", ""], rows) + legend


def _drawn(bar: Bar, longest: float) -> str:
    cells = max(1, round(BAR_CHARACTERS * bar.value / longest)) if bar.value else 0
    part = bar.value if bar.part is None else bar.part
    strong = min(cells, round(cells * part / bar.value)) if bar.value else 0
    return f"`{'█' * strong}{'░' * (cells - strong)}`" if cells else ""


def _charts(charts: Sequence[Chart]) -> Iterator[str]:
    """Charts of few points as tables of them, all others as one table of their summaries."""
    for chart in charts:
        if chart.points:
            ticks = dict(chart.ticks)
            columns = ["", *(_plain(text) for text in ticks.values())]
            rows = []
            for series in chart.series:
                found = dict(zip(series.x, series.y, strict=True))
                best = {series.x[mark] for mark in series.marks}
                cells = [_cell(found.get(x), x in best) for x in ticks]
                rows.append([_plain(series.name), *cells])
            yield f"{_plain(chart.title)}: {_plain(chart.summary)}\n\n{_lines(columns, rows)}"
    summaries = [(chart.title, chart.summary) for chart in charts if not chart.points]
    if summaries:
        yield _table_of(("over time", "mean and range"), summaries)


def _cell(value: float | None, best: bool) -> str:
    if value is None:
        return ""
    return f"**{number(value)}**" if best else number(value)


def _table_of(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return _lines([_plain(name) for name in columns], [[_plain(cell) for cell in row] for row in rows])


def _lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", escape(" ".join(text.split()), quote=False))
