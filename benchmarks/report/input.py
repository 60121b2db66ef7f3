"""Reads what a run, a benchmark or a diagnosis has left: OUT/run.json and its telemetry, or a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...engine.diagnosis.model import FORMAT_VERSION as DIAGNOSIS_VERSION
from ...engine.errors import InputNotFoundError, UsageError
from ...engine.sinks.run_dir import FORMAT_VERSION as RUN_VERSION
from ...engine.sinks.run_dir import RUN_FILE, TELEMETRY_FILE
from ...engine.telemetry.file import read_telemetry
from ..bench_file import read_bench


@dataclass(frozen=True, slots=True)
class RunRecord:
    """run.json of OUT, and the lines of its telemetry (none where there is no file; then ``note`` may say why)."""

    out: Path
    record: Mapping[str, Any]
    telemetry: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""

    @property
    def used(self) -> Mapping[str, Any]:
        used: Mapping[str, Any] = self.record.get("used") or {}
        return used

    @property
    def status(self) -> str:
        """Its state in words; a run that was killed could not say so."""
        status = str(self.record.get("status") or "not started")
        return "running, or was killed" if status == "running" else status

    @property
    def timed_sessions(self) -> list[Mapping[str, Any]]:
        """Sessions that ended some samples and told their time."""
        return [s for s in self.record.get("sessions") or [] if s.get("elapsed_s") and _ended(s)]

    @property
    def ended(self) -> int:
        """Samples that ended in timed sessions, as rows or failures."""
        return sum(_ended(session) for session in self.timed_sessions)

    @property
    def elapsed_s(self) -> float:
        return float(sum(session["elapsed_s"] for session in self.timed_sessions))

    @property
    def throughput(self) -> float:
        """Samples per second over all timed sessions, 0 where none is."""
        return self.ended / self.elapsed_s if self.elapsed_s else 0.0


def read_run(out: Path) -> RunRecord:
    """Record of the run in folder ``out``.

    Raises InputNotFoundError where there is none, UsageError for one of another version or no record at all.
    """
    path = out / RUN_FILE
    if not out.is_dir() or not path.is_file():
        what = "is empty" if out.is_dir() and not any(out.iterdir()) else f"has no {RUN_FILE}"
        raise InputNotFoundError(
            f"{out} {what if out.is_dir() else 'does not exist'}: it is not the output of a run. Give the folder that "
            "`vdali run -o` wrote."
        )
    record = _json_object(path, "a run's record")
    if record.get("format_version") != RUN_VERSION:
        raise _other_version(path, record, RUN_VERSION)
    telemetry, note = _telemetry(out / TELEMETRY_FILE)
    return RunRecord(out, record, telemetry, note)


def read_document(path: Path) -> dict[str, Any]:
    """What a benchmark or a diagnosis wrote as JSON.

    Raises InputNotFoundError where it is missing, UsageError for another version or no JSON object.
    """
    if not path.is_file():
        raise InputNotFoundError(f"No file {path}. Give the JSON file that `vdali bench` or `vdali diagnose` wrote.")
    document = _json_object(path, "a result")
    if document.get("kind") != "diagnosis":
        return read_bench(path)
    if document.get("format_version") != DIAGNOSIS_VERSION:
        raise _other_version(path, document, DIAGNOSIS_VERSION)
    return document


def _telemetry(path: Path) -> tuple[list[dict[str, Any]], str]:
    if not path.is_file():
        return [], "there is no telemetry of this run"
    try:
        lines: list[dict[str, Any]] = read_telemetry(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        return [], f"{path.name} is not readable: {' '.join(str(error).split())}"
    return lines, ""


def _json_object(path: Path, what: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not readable as {what}: {error}. Give another file, or make it anew.") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} is not {what}: it holds {type(value).__name__}, not an object. Give another file.")
    return value


def _other_version(path: Path, document: Mapping[str, Any], known: int) -> UsageError:
    version = document.get("format_version")
    found = "has no format_version" if version is None else f"has format_version {version!r}"
    return UsageError(f"{path} {found}; this vdali reads version {known}. Make it anew with this vdali.")


def _ended(session: Mapping[str, Any]) -> int:
    return int(session.get("rows") or 0) + int(session.get("failures") or 0)
