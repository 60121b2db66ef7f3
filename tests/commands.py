"""The command in a process of its own, and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

COMMAND = (sys.executable, "-m", "vdali")
DEADLINE_S = 120.0


def run_vdali(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """``python -m vdali`` with ``words``; names and output that are not UTF-8 survive."""
    options = {"capture_output": True, "timeout": DEADLINE_S, "check": False} | options
    return subprocess.run([*COMMAND, *_words(words)], text=True, encoding="utf-8", errors="surrogateescape", **options)


def start_vdali(*words: object, **options: Any) -> subprocess.Popen[str]:
    """The same, not waited for; stderr is a pipe."""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([*COMMAND, *_words(words)], text=True, errors="surrogateescape", **options)


def _words(words: tuple[object, ...]) -> list[str | bytes]:
    return [word if isinstance(word, bytes) else str(word) for word in words]


def wait_until(happened: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Return when ``happened``, or the process has ended."""
    until = time.monotonic() + DEADLINE_S
    while not happened() and process.poll() is None:
        assert time.monotonic() < until, f"nothing happened in {DEADLINE_S} s"
        time.sleep(0.002)


def record_of(out: Path) -> dict[str, Any]:
    """run.json."""
    return json.loads((out / "run.json").read_text())


def status_of(out: Path) -> str | None:
    """Status in run.json, None where there is none yet."""
    return record_of(out)["status"] if (out / "run.json").exists() else None


def ids_of(out: Path) -> list[str]:
    """Ids of all committed rows, in their order; no part yet means none."""
    return [] if not _parts(out, "rows") else pq.read_table(out / "rows")["id"].to_pylist()


def failed_ids_of(out: Path) -> list[str]:
    return [] if not _parts(out, "failures") else pq.read_table(out / "failures")["id"].to_pylist()


def vectors_of(out: Path) -> dict[str, np.ndarray]:
    """Embeddings of all committed rows by id."""
    table = pq.read_table(out / "rows")
    return dict(zip(table["id"].to_pylist(), np.array(table["embedding"].to_pylist(), np.float32), strict=True))


def _parts(out: Path, folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(out / folder) if name.startswith("part-")]
    except FileNotFoundError:
        return []
