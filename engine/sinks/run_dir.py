"""OUT: who may write to it, which run it belongs to, and run.json, the record of that run.

run.json has these keys:

- ``format_version``, ``vdali_version``, ``status`` (running, finished, interrupted, failed);
- ``fingerprint`` and the ``fingerprint_parts`` that it is made of (text by name);
- ``output_format`` (parquet, npy), ``spec`` (the model's), ``environment`` and ``used`` (of the last session);
- ``counts``: ``rows``, ``failures`` and ``failures_by_kind`` (``stage/kind``) as the part files hold them, and what
  the caller adds;
- ``sessions``: one record per invocation with ``status`` (also killed), ``started_at`` and ``ended_at`` (ISO 8601,
  UTC), ``wall_s``, and what the caller adds.

It describes; what is done is read off the part files.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import OutputError, VdaliError
from ..spec import ModelSpec
from ..version import __version__
from .counts import PartCounts, count_parts
from .npy import check_npy
from .parts import TEMPORARY_PREFIX, make_folder, write_durably, writing
from .schema import SCHEMA_VERSION

FORMAT_VERSION = 1
RUN_FILE = "run.json"
LOCK_FILE = ".lock"
TELEMETRY_FILE = "telemetry.parquet"
"""Written while a session runs, and from just before run.json says that it does."""


class OutputFormat(StrEnum):
    """File format of rows; failures are always Parquet."""

    PARQUET = "parquet"
    NPY = "npy"


class RunStatus(StrEnum):
    """How a run or a session of it stands."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    KILLED = "killed"


def fingerprint(parts: Mapping[str, str]) -> str:
    """SHA-256 of the canonical JSON form of ``parts``, first 16 hex digits."""
    return hashlib.sha256(json.dumps(dict(parts), sort_keys=True).encode()).hexdigest()[:16]


class RunDirectory:
    """OUT, locked against other processes and checked to belong to this run.

    A context manager: leaving it without ``finish`` marks the run failed; the lock goes with it.
    """

    def __init__(
        self,
        out: Path,
        *,
        spec: ModelSpec,
        fingerprint_parts: Mapping[str, str],
        output_format: OutputFormat = OutputFormat.PARQUET,
        retry_failures: bool = False,
    ) -> None:
        """Lock ``out``, created where absent.

        Raises UsageError for a format that cannot hold the task's rows, OutputError when ``out``
        is in use, holds other files or belongs to another run, VdaliError when it cannot be written.
        """
        if output_format is OutputFormat.NPY:
            check_npy(spec)
        self.path = out
        self.spec = spec
        self.output_format = output_format
        self.retry_failures = retry_failures
        self.fingerprint_parts = {
            **fingerprint_parts,
            "output format": output_format.value,
            "output schema": str(SCHEMA_VERSION),
        }
        self.fingerprint = fingerprint(self.fingerprint_parts)
        self._started = 0.0
        _refuse_foreign(out)
        self._lock = _locked(out)
        try:
            _refuse_foreign(out)
            self._record = self._loaded()
            self.finished = self._is_finished()
        except BaseException:
            self.close()
            raise

    @property
    def used(self) -> Mapping[str, Any]:
        """What the last session said of itself, empty before the first has ended."""
        used: Mapping[str, Any] = self._record["used"]
        return used

    @property
    def sessions(self) -> int:
        """Sessions so far, the one that ``start`` began included."""
        return len(self._record["sessions"])

    def start(self, environment: Mapping[str, Any]) -> None:
        """Begin a session: from now on run.json says running."""
        self._started = time.monotonic()
        for session in self._record["sessions"]:
            if session["status"] == RunStatus.RUNNING:
                session["status"] = RunStatus.KILLED
        self._record["sessions"].append({"status": RunStatus.RUNNING, "started_at": _now()})
        self._record |= {"vdali_version": __version__, "status": RunStatus.RUNNING, "environment": dict(environment)}
        self._write()

    def finish(
        self,
        status: RunStatus,
        *,
        used: Mapping[str, Any] | None = None,
        counts: Mapping[str, Any] | None = None,
        session: Mapping[str, Any] | None = None,
    ) -> PartCounts:
        """End the session that ``start`` began; returns what the part files hold.

        ``counts`` are those that part files cannot tell (inputs, ignored, ...), ``session`` is the
        session's own report. What is not given stays as an earlier session left it.
        """
        found = self.count()
        times = {"status": status, "ended_at": _now(), "wall_s": round(time.monotonic() - self._started, 3)}
        self._record["sessions"][-1] |= {**(session or {}), **times}
        counted = {**self._record["counts"], **(counts or {}), **found.to_json()}
        self._record |= {"status": status, "used": dict(used or self._record["used"]), "counts": counted}
        self._write()
        return found

    def count(self) -> PartCounts:
        """Rows and failures really in part files; raises OutputError when one is not readable."""
        return count_parts(self.path, "ids.parquet" if self.output_format is OutputFormat.NPY else "parquet")

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._record["status"] == RunStatus.RUNNING and self._started:
                # With a full disk this fails as well, and the error that is on its way already tells why.
                with contextlib.suppress(VdaliError):
                    self.finish(RunStatus.FAILED)
        finally:
            self.close()

    def _loaded(self) -> dict[str, Any]:
        path = self.path / RUN_FILE
        if not path.exists():
            return {
                "format_version": FORMAT_VERSION,
                "vdali_version": __version__,
                "status": None,
                "fingerprint": self.fingerprint,
                "fingerprint_parts": self.fingerprint_parts,
                "output_format": self.output_format,
                "spec": self.spec.to_json(),
                "environment": {},
                "used": {},
                "counts": {},
                "sessions": [],
            }
        record = _read_record(path)
        if record["fingerprint"] != self.fingerprint:
            raise OutputError(_difference(self.path, record["fingerprint_parts"], self.fingerprint_parts))
        return record

    def _is_finished(self) -> bool:
        """Whether the last session finished, all that it counted is there, and no failure is to be tried again."""
        if self._record["status"] != RunStatus.FINISHED:
            return False
        found = self.count()
        recorded = self._record["counts"]
        whole = (found.rows, found.failures) == (recorded["rows"], recorded["failures"])
        return whole and not (found.failures if self.retry_failures else found.retryable)

    def _write(self) -> None:
        text = json.dumps(self._record, indent=2) + "\n"
        write_durably(self.path / RUN_FILE, lambda file: file.write(text.encode()))


def _refuse_foreign(out: Path) -> None:
    """Raise OutputError when ``out`` is no folder, or holds files but no run."""
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise OutputError(f"{out} is not a folder. Choose another output folder.")
    with writing(out):
        names = sorted(os.listdir(out))
    if RUN_FILE in names:
        return
    foreign = [
        name for name in names if name not in (LOCK_FILE, TELEMETRY_FILE) and not name.startswith(TEMPORARY_PREFIX)
    ]
    if foreign:
        raise OutputError(
            f"{out} holds files but no {RUN_FILE}, so it is not the output of a run: {foreign[0]!r}"
            f"{f' and {len(foreign) - 1} more' if len(foreign) > 1 else ''}. Choose an empty or new folder."
        )


def _locked(out: Path) -> int | None:
    """Descriptor that holds the lock of ``out``; the system lets go of it even when the process is killed."""
    make_folder(out)
    path = out / LOCK_FILE
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with writing(path):
            _lock(descriptor, out)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, out: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace")
        raise OutputError(
            f"{out} is being written by another process (id {owner or 'unknown'}). Wait for it, stop it, or choose "
            "another output folder."
        ) from None


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        version = record["format_version"]
        known = record["fingerprint"], record["fingerprint_parts"], record["sessions"], record["counts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(
            f"{path} is not readable ({error!r}). Choose another output folder, or delete this one."
        ) from error
    if version != FORMAT_VERSION or not all(part is not None for part in known):
        raise OutputError(
            f"{path} was written by vdali {record.get('vdali_version')} in format {version}; this one writes format "
            f"{FORMAT_VERSION}. Choose another output folder."
        )
    return record


def _difference(out: Path, earlier: Mapping[str, str], now: Mapping[str, str]) -> str:
    lines = [
        f"  {name}: {_short(earlier.get(name))} there, {_short(now.get(name))} now"
        for name in sorted(earlier.keys() | now.keys())
        if earlier.get(name) != now.get(name)
    ]
    return "\n".join(
        [
            f"{out} belongs to another run, which differs in:",
            *lines,
            "Choose another output folder, repeat the earlier options to continue that run, or delete the folder.",
        ]
    )


def _short(value: str | None) -> str:
    if value is None:
        return "nothing"
    return value if len(value) <= 200 else f"{value[:197]}..."


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
