"""A report of a benchmark's file: what is known by its shape is drawn, all else becomes tables and facts.

Known are, at any depth: comparisons (benchmarks.comparison), sweeps (``cells``), groups of spreads (min, median, max)
and lists of objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .comparison import comparison_section, comparison_verdict, comparisons_in, is_comparison, table_of
from .diagnosis import diagnosis_sections
from .page import Bar, Bars, Block, Charts, Facts, Page, Section
from .run import cost_section, environment_section
from .sweep import CELLS, is_sweep, sweep_blocks, sweep_verdict, sweeps_in
from .words import heading, shown

_ABOUT_THE_FILE = frozenset({"bench_version", "format_version", "kind", "environment", "verdict", "notes"})
_OF_A_DIAGNOSIS = frozenset({"stages", "advice", "settings"})


def page_of_bench(document: Mapping[str, Any], name: str, *, cost: Mapping[str, Any] | None = None) -> Page:
    """The page; ``name`` is the file's."""
    rest = {key: value for key, value in document.items() if key not in _ABOUT_THE_FILE}
    if document.get("kind") == "diagnosis":
        settings = document.get("settings") or {}
        measures = {key: value for key, value in rest.items() if key not in _OF_A_DIAGNOSIS} | settings
        sections = [*diagnosis_sections(document), Section("Measures and settings", list(_blocks(measures)))]
        title = f"Diagnosis of {settings.get('model') or name}"
    else:
        sections = list(_sections(rest))
        title = f"{str(document.get('kind') or 'benchmark').capitalize()} of {_models_of(document) or name}"
    if cost is not None:
        sections.append(cost_section(cost))
    environment = environment_section(document.get("environment") or {})
    if environment is not None:
        sections.append(environment)
    return Page(
        title=title,
        subtitle=name,
        verdict=_verdict(document),
        sections=[section for section in sections if section.blocks],
        notes=[str(note) for note in document.get("notes") or []],
    )


def _verdict(document: Mapping[str, Any]) -> str:
    if document.get("verdict"):
        return str(document["verdict"])
    sentences = [comparison_verdict(part) for part in _main_comparisons(document)]
    sentences += [sweep_verdict(part) for part in sweeps_in(document)]
    return "; ".join(sentences)


def _main_comparisons(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Those of models; where there are none, all others (loaders, large photos)."""
    return list(comparisons_in(document.get("comparisons"))) or list(comparisons_in(document))


def _models_of(document: Mapping[str, Any]) -> str:
    models = [document.get("model"), *(part["model"] for part in _main_comparisons(document))]
    return ", ".join(dict.fromkeys(str(model) for model in models if model))


def _sections(document: Mapping[str, Any]) -> Iterator[Section]:
    """One section for the plain facts at the top, and one for each object below."""
    if is_sweep(document):
        yield Section("Sweep", list(_blocks(document)))
        return
    parts = {key: value for key, value in document.items() if isinstance(value, Mapping | list)}
    yield Section("Settings", list(_blocks({key: value for key, value in document.items() if key not in parts})))
    for key, value in parts.items():
        found = list(comparisons_in(value))
        yield from (comparison_section(part) for part in found)
        if not found:
            title = heading(key)
            title = title[:1].upper() + title[1:]
            yield Section(title, list(_blocks(value if isinstance(value, Mapping) else {key: value})))


def _blocks(part: Mapping[str, Any]) -> Iterator[Block]:
    """Everything in ``part``, plain facts last."""
    facts: list[tuple[str, str]] = []
    if is_sweep(part):
        charts, table = sweep_blocks(part[CELLS])
        yield Charts(charts)
        yield table
        part = {key: value for key, value in part.items() if key != CELLS}
    for key, value in part.items():
        if is_comparison(value):
            yield from comparison_section(value).blocks
        elif _are_spreads(value):
            bars = [(heading(str(name)), spread) for name, spread in value.items()]
            yield Bars([Bar(name, spread["median"], shown(key, spread) + _unit(key)) for name, spread in bars])
        elif _are_objects(value):
            yield table_of(value)
        elif isinstance(value, Mapping) and not _is_spread(value):
            yield from _blocks({f"{key} {name}": item for name, item in value.items()})
        else:
            facts.append((heading(key), shown(key, value)))
    if facts:
        yield Facts(facts)


def _is_spread(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"min", "median", "max"}


def _are_spreads(value: Any) -> bool:
    return isinstance(value, Mapping) and len(value) > 1 and all(_is_spread(item) for item in value.values())


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _unit(key: str) -> str:
    return " ms" if key.endswith("_ms_per_sample") else " images/s" if key.endswith("_samples_per_s") else ""
