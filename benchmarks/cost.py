"""What a million and a billion images cost: a measured rate, a price per hour, and every assumption beside the result.

There are no prices here: they come from the user, as a number or in a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..engine.errors import UsageError
from ..engine.sinks.run_dir import RUN_FILE
from .bench_file import damage_told, read_bench
from .comparison import ComparisonReport, Status, SystemRow
from .price import Price, money, positive, price_from_file
from .report.input import RunRecord, read_run
from .report.sweep import CELLS, is_sweep, rate_of_cell

MILLION, BILLION = 10**6, 10**9
SHORT_RUN_S = 30.0
"""A rate measured over less than this is called short: starting up and caches weigh in it."""

NOT_STATED = "not stated"
NOT_INCLUDED = (
    "starting machines, loading the model and idle time; storage, network and copies of the data; retries; people"
)

_RESERVED = frozenset({"rate", "price", "use", "not included"})
"""Assumptions that follow from rate and price: nobody can state them otherwise."""
_DESCRIBED = ("model", "precision", "resolution", "batch", "engine", "decoder", "hardware")


@dataclass(frozen=True, slots=True)
class Rate:
    """Samples per second, where that comes from, and what it holds for (text by name)."""

    throughput: float
    source: str
    holds_for: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cost:
    """What images cost at a rate and a price; ``images`` is None where only the unit costs were asked for."""

    rate: Rate
    price: Price
    images: int | None = None

    def of(self, images: int) -> float:
        """Cost of so many images, in the price's currency."""
        return self.hours(images) * self.price.per_hour

    def hours(self, images: int) -> float:
        return images / self.rate.throughput / 3600

    @property
    def assumptions(self) -> dict[str, str]:
        """All that the numbers rest on, as text by name."""
        holds_for = {name: self.rate.holds_for.get(name, NOT_STATED) for name in _DESCRIBED}
        return {
            "rate": f"{self.rate.throughput:,.2f} images/s, {self.rate.source}",
            "price": f"{money(self.price.per_hour, self.price.currency)} an hour, {self.price.source}",
            **holds_for,
            **{name: text for name, text in self.rate.holds_for.items() if name not in holds_for},
            "use": "the machine does nothing else, is paid by the second and keeps this rate to the end",
            "not included": NOT_INCLUDED,
        }

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.rate.notes, *self.price.notes)

    def lines(self) -> list[str]:
        """The result and its assumptions for people."""
        asked = [] if self.images in (None, MILLION, BILLION) else [self.images]
        lines = []
        for images in (*asked, MILLION, BILLION):
            cost = money(self.of(images or 0), self.price.currency)
            lines.append(f"{images:,} images: {cost} ({_duration(self.hours(images or 0))} of one machine)")
        lines.append("assumptions:")
        lines += [f"  {name}: {text}" for name, text in self.assumptions.items()]
        return lines + [f"note: {note}" for note in self.notes]

    def to_json(self) -> dict[str, Any]:
        """JSON form, units in the keys."""
        document: dict[str, Any] = {
            "kind": "cost",
            "currency": self.price.currency,
            "throughput_samples_per_s": self.rate.throughput,
            "price_per_hour": self.price.per_hour,
            "cost_per_million_samples": self.of(MILLION),
            "cost_per_billion_samples": self.of(BILLION),
            "hours_per_million_samples": self.hours(MILLION),
            "assumptions": self.assumptions,
            "notes": list(self.notes),
        }
        if self.images is not None:
            document["asked"] = {
                "images": self.images,
                "cost": self.of(self.images),
                "hours": self.hours(self.images),
            }
        return document


def cost(
    *,
    throughput: float | None = None,
    run: Path | None = None,
    bench: Path | None = None,
    system: str | None = None,
    model: str | None = None,
    price_per_hour: float | None = None,
    prices: Path | None = None,
    machine: str | None = None,
    currency: str = "USD",
    images: int | None = None,
    holds_for: Mapping[str, str] | None = None,
) -> Cost:
    """Cost from one rate and one price.

    The rate is a number (``throughput``, samples/s; ``holds_for`` says of what), a finished run's folder, or a
    benchmark's file (of ``system`` with ``model``, where it has more than one). The price is a number with its
    ``currency``, or that of ``machine`` in the file ``prices``. Raises UsageError for numbers that are not above 0,
    for a run that is not finished and for files that are not what they should be, InputNotFoundError where there is
    nothing.
    """
    _one_of("rate", {"--throughput": throughput, "--run": run, "--bench": bench})
    _one_of("price", {"--price-per-hour": price_per_hour, "--prices": prices})
    if bench is None and (system or model):
        raise UsageError("--system and --model choose among the results of a bench file. Leave them out.")
    if prices is None and machine:
        raise UsageError("--machine chooses among the machines of a price file. Leave it out, or give --prices.")
    if images is not None and images < 1:
        raise UsageError(f"The number of images must be >= 1, got {images}.")
    taken = _RESERVED.intersection(holds_for or {})
    if taken:
        raise UsageError(f"'{min(taken)}' cannot be assumed: it follows from the rate and the price. Use another name.")
    if throughput is not None:
        rate = Rate(positive(throughput, "throughput"), "given as a number", dict(holds_for or {}))
    else:
        rate = rate_of_run(run) if run is not None else rate_of_bench(bench or Path(), system, model)
    if price_per_hour is not None:
        price = Price(positive(price_per_hour, "price per hour"), currency, "given as a number")
    else:
        price = price_from_file(prices or Path(), machine)
    found = Cost(rate, price, images)
    if not math.isfinite(found.of(max(BILLION, images or 0))):
        raise UsageError(f"{rate.throughput:g} images/s at {price.per_hour:g} an hour cost more than can be counted.")
    return found


def rate_of_run(out: Path) -> Rate:
    """Rate of all sessions of a finished run together; raises UsageError where it is not finished or did nothing."""
    found = read_run(out)
    if found.status != "finished":
        raise UsageError(
            f"The run in {out} is not finished ({found.status}): its rate would be a guess. Run the same "
            "`vdali run` command again to finish it, or give --throughput."
        )
    with damage_told(out / RUN_FILE):
        if not found.throughput:
            raise UsageError(f"The run in {out} ended no image, so it has no rate. Give another run, or --throughput.")
        source = f"measured over {found.ended:,} images in {found.elapsed_s:,.1f} s ({out})"
        return Rate(found.throughput, source, _conditions_of_run(found), tuple(_notes_of_run(found)))


def rate_of_bench(path: Path, system: str | None = None, model: str | None = None) -> Rate:
    """Median rate of ``system`` (default: vdali's own) with ``model`` in a benchmark's file, or a sweep's best point.

    Raises UsageError where the file compares several models and none is named, or has no right result of the system,
    and for a sweep that recommends nothing.
    """
    document = read_bench(path)
    with damage_told(path):
        return _rate_of_sweep(document, path) if is_sweep(document) else _rate_in(document, path, system, model)


def _rate_in(document: Mapping[str, Any], path: Path, system: str | None, model: str | None) -> Rate:
    """Rate of one system in the comparison with ``model``."""
    reports = [ComparisonReport.from_json(part) for part in document.get("comparisons") or []]
    found = [report for report in reports if model in (None, report.model)]
    if len(found) != 1:
        models = ", ".join(report.model for report in reports) or "none"
        raise UsageError(f"{path} compares systems with these models: {models}. Name one of them.")
    (report,) = found
    row = next((row for row in report.rows if row.system == (system or report.ours)), None)
    if row is None or row.throughput is None or row.status is not Status.OK:
        states = ", ".join(f"{row.system} ({row.status})" for row in report.rows)
        raise UsageError(f"{path} has no right result of '{system or report.ours}'. It has: {states}.")
    source = f"median of {report.rounds} rounds ({row.throughput.text(1)}; {row.system} in {path})"
    rate = positive(row.throughput.median, f"rate of {row.system} in {path}")
    return Rate(rate, source, _conditions_of_bench(report, row, document.get("environment") or {}))


def _rate_of_sweep(document: Mapping[str, Any], path: Path) -> Rate:
    cell = next((cell for cell in document[CELLS] if cell.get("recommended")), None)
    rate = rate_of_cell(cell) if cell is not None else None
    if cell is None or rate is None:
        raise UsageError(f"The sweep in {path} recommends no point. Finish it, or give --throughput.")
    environment = document.get("environment") or {}
    holds_for = {
        "model": f"{document.get('model', NOT_STATED)} (weights: {document.get('weights', NOT_STATED)})",
        "precision": str(cell.get("precision", NOT_STATED)),
        "resolution": f"{cell.get('resolution', NOT_STATED)} pixels into the model",
        "batch": f"{cell['batch_size']} images",
        "decoder": str(cell.get("decoder", NOT_STATED)),
        "hardware": f"{environment.get('cpus_usable', '?')} CPUs ({environment.get('cpu') or 'unknown model'})",
    }
    return Rate(rate, f"the recommended point of the sweep in {path}", holds_for)


def _conditions_of_run(found: RunRecord) -> dict[str, str]:
    used, spec, environment = found.used, found.record.get("spec") or {}, found.record.get("environment") or {}
    height, width = (spec.get("preprocess") or {}).get("size") or (None, None)
    gpus = environment.get("gpus")
    hardware = [f"{environment.get('cpus_usable', '?')} CPUs ({environment.get('cpu') or 'unknown model'})"]
    hardware += [str(gpu) for gpu in gpus] if isinstance(gpus, list) else []
    return {
        "model": f"{used.get('model', NOT_STATED)} (weights: {used.get('weights') or NOT_STATED})",
        "precision": str(used.get("precision", NOT_STATED)),
        "resolution": f"{width}x{height} pixels into the model" if width else NOT_STATED,
        "batch": f"{used.get('micro_batch', '?')} images an engine call, {used.get('lanes', '?')} lanes",
        "engine": str(used.get("engine", NOT_STATED)),
        "decoder": str(used.get("decoder", NOT_STATED)),
        "hardware": ", ".join(hardware),
    }


def _notes_of_run(found: RunRecord) -> list[str]:
    notes = []
    untimed = len(found.record.get("sessions") or []) - len(found.timed_sessions)
    if untimed:
        sessions = "session" if untimed == 1 else "sessions"
        notes.append(f"{untimed} {sessions} of the run told no time (killed, or nothing to do): not in the rate")
    if found.elapsed_s < SHORT_RUN_S:
        notes.append(f"the rate was measured over only {found.elapsed_s:.1f} s: measure longer before you rely on it")
    failures = sum(int(session.get("failures") or 0) for session in found.timed_sessions)
    if failures:
        notes.append(
            f"{failures:,} of the {found.ended:,} images failed; they are counted and paid for like the others"
        )
    return notes


def _conditions_of_bench(report: ComparisonReport, row: SystemRow, environment: Mapping[str, Any]) -> dict[str, str]:
    return {
        "model": f"{report.model} (weights: {report.weights})",
        **({"resolution": f"{report.resolution} pixels into the model"} if report.resolution else {}),
        "batch": f"{report.batch_size} images",
        "system": row.description,
        "data": f"{report.images:,} images of {report.input_bytes / report.images / 1e3:,.0f} kB",
        "hardware": f"{report.device}, {report.cpus} CPUs ({environment.get('cpu') or 'unknown model'})",
    }


def _one_of(what: str, given: Mapping[str, object]) -> None:
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        got = " and ".join(named) if named else "none"
        raise UsageError(f"A cost needs one {what}, got {got}. Give one of {', '.join(given)}.")


def _duration(hours: float) -> str:
    if hours < 1 / 60:
        return f"{3600 * hours:.3g} s"
    if hours < 1:
        return f"{60 * hours:.3g} min"
    return f"{hours:,.1f} h" if hours < 100 else f"{hours:,.0f} h"
