"""A report of a run from what it left in OUT."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..price import money
from .diagnosis import diagnosis_sections, stages_of_run, verdict_of_run
from .input import RunRecord
from .page import Charts, Facts, Page, Section
from .timeline import timeline
from .words import NOTHING, byte_count, heading, number, seconds, shown

_ENVIRONMENT_LAST = ("packages",)


def page_of_run(
    run: RunRecord, *, diagnosis: Mapping[str, Any] | None = None, cost: Mapping[str, Any] | None = None
) -> Page:
    """The page; ``diagnosis`` and ``cost`` are JSON forms to put beside the run's own numbers."""
    record, used, spec = run.record, run.used, run.record.get("spec") or {}
    sections = [_result(run), stages_of_run(run)]
    if diagnosis is not None:
        sections += diagnosis_sections(diagnosis)
    charts = timeline(run.telemetry)
    if charts:
        sections.append(Section("Over time", [Charts(charts)]))
    if cost is not None:
        sections.append(cost_section(cost))
    sections += [_used(run), environment_section(record.get("environment") or {})]
    status = run.status
    model, precision = used.get("model") or spec.get("name"), used.get("precision") or spec.get("precision")
    return Page(
        title=f"{model or 'Run'} at {precision or NOTHING}",
        subtitle=f"vdali run, {status}: {run.out}",
        verdict=diagnosis["verdict"] if diagnosis is not None else verdict_of_run(run),
        sections=[section for section in sections if section is not None],
        notes=_notes(run, status, diagnosis),
    )


def cost_section(cost: Mapping[str, Any]) -> Section:
    """Unit costs and every assumption behind them."""
    currency = str(cost["currency"])
    asked = cost.get("asked")
    rows = [
        ("a million images", money(cost["cost_per_million_samples"], currency)),
        ("a billion images", money(cost["cost_per_billion_samples"], currency)),
    ]
    if asked:
        rows.insert(0, (f"{asked['images']:,} images", money(asked["cost"], currency)))
    rows += [(str(name), str(text)) for name, text in cost["assumptions"].items()]
    rows += [("note", str(note)) for note in cost.get("notes") or []]
    return Section("Cost", [Facts(rows)])


def environment_section(environment: Mapping[str, Any]) -> Section | None:
    """Machine and versions."""
    names = [name for name in environment if name not in _ENVIRONMENT_LAST]
    rows = [(heading(name), shown(name, environment[name])) for name in names]
    packages = environment.get("packages") or {}
    rows += [(str(name), str(version)) for name, version in packages.items()]
    return Section("Environment", [Facts(rows)]) if rows else None


def _result(run: RunRecord) -> Section:
    counts = run.record.get("counts") or {}
    kinds = counts.get("failures_by_kind") or {}
    failures = _count(counts, "failures")
    if kinds:
        failures += " (" + ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()) + ")"
    decoded: Counter[str] = Counter()
    for session in run.timed_sessions:
        decoded.update(session.get("decoded_by") or {})
    rows = [
        ("rows", _count(counts, "rows")),
        ("failures", failures),
        ("throughput", f"{number(run.throughput)} images/s" if run.throughput else NOTHING),
        ("measured over", f"{run.ended:,} images in {seconds(run.elapsed_s)}"),
        ("sessions", str(len(run.record.get("sessions") or []))),
        ("decoded by", ", ".join(f"{name} {count:,}" for name, count in decoded.most_common()) or NOTHING),
        ("peak memory", _peak_memory(run)),
    ]
    return Section("Result", [Facts(rows)])


def _count(counts: Mapping[str, Any], name: str) -> str:
    """A count of run.json, which is not known before its first session has ended."""
    return f"{counts[name]:,}" if name in counts else NOTHING


def _peak_memory(run: RunRecord) -> str:
    peak = max((session.get("peak_rss_bytes") or 0 for session in run.timed_sessions), default=0)
    return byte_count(peak) if peak else NOTHING


def _used(run: RunRecord) -> Section:
    rows = [(str(name).replace("_", " "), shown(str(name), value)) for name, value in run.used.items()]
    size = ((run.record.get("spec") or {}).get("preprocess") or {}).get("size")
    if size:
        rows.append(("resolution", f"{size[1]} x {size[0]} pixels into the model"))
    rows.append(("vdali", str(run.record.get("vdali_version") or NOTHING)))
    return Section("What was used", [Facts(rows)])


def _notes(run: RunRecord, status: str, diagnosis: Mapping[str, Any] | None) -> list[str]:
    notes = []
    if status != "finished":
        notes.append(f"The run is {status}: the numbers are those of its sessions so far.")
    untimed = len(run.record.get("sessions") or []) - len(run.timed_sessions)
    if untimed:
        sessions = "session" if untimed == 1 else "sessions"
        notes.append(f"{untimed} {sessions} told no time (killed, running, or nothing to do): not in the rates.")
    if run.note:
        notes.append(f"{run.note[0].upper()}{run.note[1:]}.")
    if diagnosis is not None:
        notes += [str(note) for note in diagnosis.get("notes") or []]
    return notes
