"""A report of a benchmark's file: what is known by its shape is drawn, all else becomes tables and facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .report_diagnosis import diagnosis_sections
from .report_page import Bar, Bars, Block, Charts, Facts, Page, Section, Table
from .report_run import cost_section, environment_section
from .report_sweep import is_sweep, sweep_blocks, sweep_verdict
from .report_words import heading, number, shown

_NOT_SHOWN = frozenset({"format_version", "kind", "environment", "verdict", "notes", "stages", "advice"})
MESSAGE_CHARACTERS = 120
SYSTEMS, CELLS = "systems", "cells"


def page_of_bench(document: Mapping[str, Any], name: str, *, cost: Mapping[str, Any] | None = None) -> Page:
    """The page; ``name`` is the file's."""
    kind = document.get("kind")
    sections: list[Section] = []
    if kind == "diagnosis":
        sections += diagnosis_sections(document)
        found = _without(document, _NOT_SHOWN | {"settings"}) | dict(document.get("settings") or {})
        sections.append(Section("Measures and settings", list(_blocks(found))))
    elif kind == "cost":
        sections.append(cost_section(document))
    else:
        sections += _sections(_without(document, _NOT_SHOWN - {"stages", "advice"}))
    if cost is not None:
        sections.append(cost_section(cost))
    environment = environment_section(document.get("environment") or {})
    if environment is not None:
        sections.append(environment)
    return Page(
        title=f"{str(kind or 'benchmark').capitalize()} of {_model_of(document) or name}",
        subtitle=name,
        verdict=_verdict(document),
        sections=[section for section in sections if section.blocks],
        notes=[str(note) for note in document.get("notes") or []],
    )


def _model_of(document: Mapping[str, Any]) -> str | None:
    settings = document.get("settings")
    model = document.get("model") or (settings.get("model") if isinstance(settings, Mapping) else None)
    return str(model) if model else None


def _verdict(document: Mapping[str, Any]) -> str:
    if document.get("verdict"):
        return str(document["verdict"])
    for part in _parts(document):
        if is_sweep(part.get(CELLS)):
            return sweep_verdict(part)
        if _is_comparison(part):
            return _comparison_verdict(part[SYSTEMS])
    return ""


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every object inside ``value``, the outer ones first."""
    if isinstance(value, Mapping):
        yield value
        for item in value.values():
            yield from _parts(item)


def _sections(document: Mapping[str, Any]) -> Iterator[Section]:
    """One section for what stands at the top, and one for each object below that has a shape of its own."""
    if _is_comparison(document) or is_sweep(document.get(CELLS)):
        yield Section("Comparison" if _is_comparison(document) else "Sweep", list(_blocks(document)))
        return
    parts = {key: value for key, value in document.items() if isinstance(value, Mapping | list)}
    yield Section("Settings", list(_blocks(_without(document, frozenset(parts)))))
    for key, value in parts.items():
        title = heading(key)
        yield Section(
            title[:1].upper() + title[1:], list(_blocks(value if isinstance(value, Mapping) else {key: value}))
        )


def _blocks(part: Mapping[str, Any]) -> Iterator[Block]:
    """Everything in ``part``: comparison, sweep, groups of spreads, lists of objects, then plain facts."""
    facts: list[tuple[str, str]] = []
    for key, value in part.items():
        if key == SYSTEMS and _is_comparison(part):
            yield from _comparison_blocks(value)
        elif key == CELLS and is_sweep(value):
            charts, table = sweep_blocks(value)
            yield Charts(charts)
            yield table
        elif _are_spreads(value):
            yield Bars(
                [Bar(heading(str(n)), v["median"], f"{shown(key, v)} {_unit(key)}".rstrip()) for n, v in value.items()]
            )
        elif _are_objects(value):
            yield table_of(value)
        elif isinstance(value, Mapping) and not _is_spread(value):
            yield from _blocks({f"{key} {name}": item for name, item in value.items()})
        else:
            facts.append((heading(key), shown(key, value)))
    if facts:
        yield Facts(facts)


def _comparison_blocks(systems: Mapping[str, Mapping[str, Any]]) -> Iterator[Block]:
    """Median rates as bars, the fastest right one marked, and all that was measured as a table."""
    fastest = _fastest(systems)
    bars = []
    for name, row in systems.items():
        measured = row.get("throughput_samples_per_s")
        trouble = _trouble(row)
        texts = [f"{shown('throughput_samples_per_s', measured)} images/s" if measured else "", trouble]
        text = "; ".join(text for text in texts if text) or "not measured"
        part = 0.0 if trouble else None
        bars.append(Bar(name, _median(measured) or 0.0, text, part, marked=name == fastest))
    yield Bars(bars)
    rows = [{"system": name, **row} for name, row in systems.items()]
    yield table_of(rows, marked=frozenset({list(systems).index(fastest)} if fastest is not None else ()))


def _comparison_verdict(systems: Mapping[str, Mapping[str, Any]]) -> str:
    fastest = _fastest(systems)
    if fastest is None:
        return "no system was measured"
    rate = _median(systems[fastest]["throughput_samples_per_s"]) or 0.0
    others = [
        f"{rate / other:.2f}x {name}"
        for name, row in systems.items()
        if name != fastest and not _trouble(row) and (other := _median(row.get("throughput_samples_per_s")))
    ]
    failed = [f"{name}: {trouble}" for name, row in systems.items() if (trouble := _trouble(row))]
    text = f"{fastest} is the fastest with {number(rate)} images/s"
    text += f", {', '.join(others)}" if others else ""
    return text + (f"; not counted: {'; '.join(failed)}" if failed else "")


def _fastest(systems: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Name of the system with the highest median rate among those that gave right results."""
    right = {n: _median(row.get("throughput_samples_per_s")) or 0.0 for n, row in systems.items() if not _trouble(row)}
    best = max(right, key=lambda name: right[name], default=None)
    return best if best is not None and right[best] else None


def _trouble(row: Mapping[str, Any]) -> str:
    """Why a system's rate does not count, empty where it does."""
    for key in ("failed", "error", "absent", "wrong"):
        if row.get(key):
            return key if row[key] is True else f"{key}: {str(row[key])[:MESSAGE_CHARACTERS]}"
    return ""


def table_of(rows: Sequence[Mapping[str, Any]], *, marked: frozenset[int] = frozenset()) -> Table:
    """Objects as a table with a column for every key that any of them has a value for."""
    keys = list(dict.fromkeys(key for row in rows for key, value in row.items() if value is not None))
    return Table(
        [heading(str(key)) for key in keys], [[shown(str(key), row.get(key)) for key in keys] for row in rows], marked
    )


def _is_comparison(part: Mapping[str, Any]) -> bool:
    systems = part.get(SYSTEMS)
    return isinstance(systems, Mapping) and bool(systems) and all(isinstance(v, Mapping) for v in systems.values())


def _is_spread(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"min", "median", "max"}


def _are_spreads(value: Any) -> bool:
    return isinstance(value, Mapping) and len(value) > 1 and all(_is_spread(item) for item in value.values())


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _median(value: Any) -> float | None:
    if _is_spread(value):
        return float(value["median"])
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _unit(key: str) -> str:
    return "ms" if key.endswith("_ms_per_sample") else "images/s" if key.endswith("_samples_per_s") else ""


def _without(document: Mapping[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in keys}
