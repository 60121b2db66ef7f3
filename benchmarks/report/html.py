"""A report page as one HTML file: no script, no network, light and dark, readable from 320 pixels of width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from .page import Bars, Block, Chart, Charts, Facts, Page, Section, Series, Table, Text
from .words import NOTHING

COLOURS = 8
"""Colours of series that report.css has."""

MOST_ROWS = 12
"""Longer tables are folded."""

_NONE = ' class="none"'
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content security policy: whatever a user's text may hold, the page loads and runs nothing."""

_STYLE = Path(__file__).with_name("report.css")


def html_of(page: Page) -> str:
    """The whole document."""
    title = escape(page.title)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{title}</title>",
            f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<header><h1>{title}</h1><p>{escape(page.subtitle)}</p></header>",
            f'<p class="verdict">{escape(page.verdict)}</p>' if page.verdict else "",
            *(_section(section) for section in page.sections),
            _notes(page.notes),
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _section(section: Section) -> str:
    blocks = "\n".join(_block(block) for block in section.blocks)
    return f"<section>\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>"


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<section>\n<h2>Notes</h2>\n<ul>{items}</ul>\n</section>"


def _block(block: Block) -> str:
    match block:
        case Text():
            return "\n".join(f"<p>{escape(paragraph)}</p>" for paragraph in block.paragraphs)
        case Facts():
            rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in block.rows)
            return f"<dl>{rows}</dl>"
        case Table():
            return _table(block)
        case Bars():
            return _bars(block)
        case Charts():
            return f'<div class="charts">{"".join(_chart(chart) for chart in block.charts)}</div>'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    text = (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{"".join(_rows(table))}</tbody>\n'
        "</table></div>"
    )
    if len(table.rows) <= MOST_ROWS:
        return text
    return f"<details><summary>All {len(table.rows)} rows</summary>\n{text}</details>"


def _rows(table: Table) -> Iterator[str]:
    """Rows; each cell knows its column's name, which a narrow screen shows beside it, and whether it is empty."""
    for number, row in enumerate(table.rows):
        cells = "".join(
            f'<td data-name="{escape(name, quote=True)}"{_NONE if cell == NOTHING else ""}>{escape(cell)}</td>'
            for name, cell in zip(table.columns, row, strict=True)
        )
        marked = ' class="marked"' if number in table.marked else ""
        yield f"<tr{marked}>{cells}</tr>\n"


def _bars(bars: Bars) -> str:
    longest = max((bar.value for bar in bars.bars), default=0.0) or 1.0
    rows = []
    for bar in bars.bars:
        width = 100 * bar.value / longest
        part = 100 * min(1.0, (bar.value if bar.part is None else bar.part) / bar.value) if bar.value else 0.0
        fill = (
            f'<span class="fill" style="width:{width:.2f}%"><span class="part" style="width:{part:.2f}%"></span></span>'
        )
        marked = " marked" if bar.marked else ""
        rows.append(
            f'<li class="bar{marked}"><span class="label">{escape(bar.label)}</span>'
            f'<span class="track">{fill}</span><span class="value">{escape(bar.text)}</span></li>'
        )
    legend = ""
    if bars.parts is not None:
        part_name, rest_name = bars.parts
        legend = (
            f'<p class="legend"><span><i class="swatch part"></i>{escape(part_name)}</span>'
            f'<span><i class="swatch rest"></i>{escape(rest_name)}</span></p>'
        )
    return f'<ul class="bars">{"".join(rows)}</ul>{legend}'


def _chart(chart: Chart) -> str:
    label = escape(f"{chart.title}: {chart.summary}", quote=True)
    shapes = "".join(_shapes(chart))
    legend = ""
    if len(chart.series) > 1:
        names = (
            f'<span><i class="swatch c{i % COLOURS}"></i>{escape(s.name)}</span>' for i, s in enumerate(chart.series)
        )
        legend = f'<p class="legend">{"".join(names)}</p>'
    return (
        f"<figure><figcaption><strong>{escape(chart.title)}</strong> <span>{escape(chart.summary)}</span></figcaption>"
        f'<div class="plot" role="img" aria-label="{label}"><span class="top">{escape(chart.top_text)}</span>'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">{shapes}</svg></div>'
        f'<div class="ticks">{"".join(_ticks(chart))}</div>{legend}</figure>'
    )


def _shapes(chart: Chart) -> Iterator[str]:
    """Grid, breaks, then for each series its range, line and points, in a square of 100 that is stretched to fit.

    Strokes keep their width when stretched; a point is a stroke of no length with round ends, so it stays round.
    """
    yield '<path class="grid" d="M0 0H100M0 50H100M0 100H100"/>'
    for x in chart.breaks:
        yield f'<path class="break" d="M{_x(chart, x)} 0V100"/>'
    for number, series in enumerate(chart.series):
        colour = f"c{number % COLOURS}"
        points = [f"{_x(chart, x)} {_y(chart, y)}" for x, y in zip(series.x, series.y, strict=True)]
        if series.low:
            yield f'<path class="range {colour}" d="M{"L".join(_outline(chart, series))}Z"/>'
        yield f'<path class="line {colour}" d="M{"L".join(points if len(points) > 1 else points * 2)}"/>'
        if chart.points:
            yield f'<path class="point {colour}" d="{"".join(f"M{point}h0" for point in points)}"/>'
        for mark in series.marks:
            yield f'<path class="mark {colour}" d="M{points[mark]}h0"/>'


def _outline(chart: Chart, series: Series) -> list[str]:
    above = [f"{_x(chart, x)} {_y(chart, y)}" for x, y in zip(series.x, series.high, strict=True)]
    below = [f"{_x(chart, x)} {_y(chart, y)}" for x, y in zip(series.x, series.low, strict=True)]
    return above + below[::-1]


def _ticks(chart: Chart) -> Iterator[str]:
    for x, text in chart.ticks:
        at = float(_x(chart, x))
        side = " first" if at < 2 else " last" if at > 98 else ""
        yield f'<span class="tick{side}" style="left:{at}%">{escape(text)}</span>'


def _x(chart: Chart, x: float) -> str:
    low, high = chart.x_range
    return f"{100 * (x - low) / (high - low) if high > low else 50.0:.2f}"


def _y(chart: Chart, y: float) -> str:
    return f"{100 - 100 * min(1.0, y / chart.top) if chart.top else 100.0:.2f}"
