"""What a report says, apart from how it looks: a page of sections made of a few kinds of blocks.

Every text is plain and may come from a user's files; whoever renders it escapes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Text:
    """Plain paragraphs."""

    paragraphs: Sequence[str]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of text; rows whose number is in ``marked`` stand out."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: ``value`` in all, ``part`` of it in a stronger colour, ``text`` beside it."""

    label: str
    value: float
    text: str
    part: float | None = None
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars on one scale from 0; ``parts`` names (part, rest) where bars have parts."""

    bars: Sequence[Bar]
    parts: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y) in order of x; ``low`` and ``high`` are the range around each y; ``marks`` are points to show."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    marks: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines on one pair of axes, which begin at 0 on the y axis.

    ``ticks`` are (x, text); ``top`` is the y of the upper edge and ``top_text`` what stands there. ``breaks`` are
    x where one session ends and the next begins. ``points`` draws every point, for curves of few.
    """

    title: str
    summary: str
    series: Sequence[Series]
    x_range: tuple[float, float]
    top: float
    top_text: str
    ticks: Sequence[tuple[float, str]]
    breaks: Sequence[float] = ()
    points: bool = False


@dataclass(frozen=True, slots=True)
class Charts:
    """Small charts side by side."""

    charts: Sequence[Chart]


Block = Text | Facts | Table | Bars | Charts


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report: the verdict is one sentence, ``subtitle`` says what it is about."""

    title: str
    subtitle: str
    verdict: str
    sections: Sequence[Section]
    notes: Sequence[str] = field(default_factory=tuple)
