"""A report as a table for people: words, not only colours, so that a pipe and a narrow terminal keep everything."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .report import Check, Report, Status

COLOURS = {Status.OK: "green", Status.MISSING: "dim", Status.WARNING: "yellow", Status.ERROR: "bold red"}

NARROW_COLUMNS = 60
"""Below this width the text goes under the name instead of beside it."""

INDENT = 2


def render(report: Report, console: Console) -> None:
    """Print ``report``; on a console that is no terminal there are no colours."""
    name_width = max((len(check.name) for check in report.checks), default=0)
    for topic in dict.fromkeys(check.topic for check in report.checks):
        console.print(Text(topic, style="bold"))
        checks = [check for check in report.checks if check.topic == topic]
        if console.width < NARROW_COLUMNS:
            _print_narrow(checks, console)
        else:
            console.print(_indented(_table(checks, name_width)))
    verdict = report.verdict
    console.print(Text("verdict", style="bold"))
    console.print(_indented(Text(f"--device auto uses {verdict.device}: {verdict.reason}")))
    console.print(_indented(Text(f"decoders that work: {', '.join(verdict.decoders) or 'none'}")))


def _table(checks: list[Check], name_width: int) -> Table:
    """Status, name and finding side by side; the advice stands under the finding."""
    table = Table.grid(padding=(0, INDENT, 0, 0), expand=True)
    table.add_column(width=max(map(len, Status)))
    table.add_column(width=name_width)
    table.add_column(overflow="fold", ratio=1)
    for check in checks:
        table.add_row(Text(check.status.value, style=COLOURS[check.status]), Text(check.name), _text(check))
    return table


def _print_narrow(checks: list[Check], console: Console) -> None:
    for check in checks:
        console.print(Text(f"{check.status.value}: {check.name}", style=COLOURS[check.status]))
        console.print(_indented(_text(check)))


def _text(check: Check) -> Text:
    return Text("\n".join(part for part in (check.found, check.advice and f"-> {check.advice}") if part))


def _indented(content: Text | Table) -> Padding:
    return Padding(content, (0, 0, 0, INDENT))
