"""The file that a benchmark leaves: one JSON document with a version number."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..engine.errors import OutputError, UsageError
from ..engine.job import environment

BENCH_VERSION = 1
"""Raised whenever a reader of the last version would misread the file."""


def write_bench(path: Path, document: Mapping[str, Any]) -> None:
    """Write ``document`` with version and environment, whole or not at all; raises OutputError where it cannot.

    Its keys, each optional: ``kind``, ``comparisons`` and ``large`` (lists of ComparisonReport.to_json()), ``loaders``
    (one), ``stages``, ``robustness``, ``advice``, ``notes``.
    """
    whole = {"bench_version": BENCH_VERSION, "environment": environment(), **document}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(path, json.dumps(whole, indent=2) + "\n")
    except OSError as error:
        raise OutputError(f"Cannot write {path}: {error.strerror}. Choose another file.") from error


def check_writable(path: Path) -> None:
    """Raise OutputError where ``write_bench`` could not write ``path``: better before hours of measuring than after."""
    probe = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        if path.is_dir():
            raise OutputError(f"Cannot write {path}: it is a folder. Choose another file.")
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(f"Cannot write {path}: {error.strerror}. Choose another file.") from error


def _write_whole(path: Path, text: str) -> None:
    """Replace ``path`` in one step: who reads it, or goes on after a kill, finds the old file or the new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_bench(path: Path) -> dict[str, Any]:
    """The document of a benchmark; raises UsageError where the file is none, or of another version."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}. Give a file that `vdali bench` wrote.") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}). Give a file that `vdali bench` wrote.") from error
    version = document.get("bench_version") if isinstance(document, dict) else None
    if version is None:
        raise UsageError(f"{path} is no bench file: it has no bench_version. Give a file that `vdali bench` wrote.")
    if version != BENCH_VERSION:
        raise UsageError(
            f"{path} is of bench version {version}, this vdali reads version {BENCH_VERSION}. Measure again."
        )
    whole: dict[str, Any] = document
    return whole


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Turn what goes wrong in the block, which takes apart what ``path`` holds, into a UsageError about that file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{path} is damaged: it does not hold what its version says ({why}). Give another file, or make it anew."
        ) from error
