"""What the check has found, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .isolate import PartReport
from .record import Status

_MARKS = {Status.PASSED: "ok", Status.REFUSED: "ok", Status.MISSING: "--", Status.NOT_RUN: "--"}
_BAD = "!!"


def lines_of(report: PartReport) -> Iterator[str]:
    """The part's line, then one for each of its checks."""
    mark = _MARKS.get(report.status, _BAD)
    yield f"{mark} {report.name:<14} {report.status:<10} {report.seconds:6.1f} s  {report.detail or report.title}"
    for result in report.results:
        said = "; ".join(filter(None, (result.detail, _numbers(result.numbers))))
        yield f"   {_MARKS.get(result.status, _BAD)} {result.name}: {said or result.status}"


def summary(reports: Sequence[PartReport]) -> str:
    """One sentence for all."""
    by_status: dict[str, list[str]] = {}
    for report in reports:
        by_status.setdefault(report.status.value, []).append(report.name)
    return "; ".join(f"{status}: {', '.join(names)}" for status, names in by_status.items())


def _numbers(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:,.4g}" for name, value in numbers.items())
