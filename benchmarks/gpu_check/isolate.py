"""One part in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .parts import Part
from .record import Result, Status, read_results, worst

_LAST_WORDS = 400
_ENTRY = Path(__file__).with_name("run.py")


@dataclass(frozen=True, slots=True)
class PartReport:
    """How a part has ended; ``detail`` says why where its checks do not."""

    name: str
    title: str
    status: Status
    detail: str
    seconds: float
    results: Sequence[Result] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "part": self.name,
            "title": self.title,
            "status": self.status.value,
            "detail": self.detail,
            "wall_s": self.seconds,
            "checks": [result.to_json() for result in self.results],
        }


def run_part(part: Part, *, limit_s: float, command: Sequence[str] | None = None) -> PartReport:
    """Run a part for at most ``limit_s``. ``command`` stands in for its process: it gets the file for results last."""
    missing = part.missing()
    if missing:
        return PartReport(
            part.name, part.title, Status.MISSING, f"not installed: {', '.join(missing)}. {part.install}", 0.0
        )
    if limit_s <= 0:
        return PartReport(part.name, part.title, Status.NOT_RUN, "no time is left for it. Run it alone: --part", 0.0)
    with tempfile.TemporaryDirectory(prefix="vdali-gpu-check-") as folder:
        results, log = Path(folder) / "results", Path(folder) / "log"
        words = [*(command or (sys.executable, str(_ENTRY), "--child", part.name)), str(results)]
        started = time.perf_counter()
        status = _end_of(words, log, limit_s)
        seconds = time.perf_counter() - started
        found, begun = read_results(results)
        return _report(part, found, begun, _trouble(status, begun, limit_s, log), seconds)


def _end_of(words: Sequence[str], log: Path, limit_s: float) -> int | None:
    """Exit status of a process, None where it had to be ended.

    Its temporary files are beside ``log``, so that none outlives it, however it ends.
    """
    environment = {**os.environ, "VDALI_REQUIRE_GPU": "1", "TMPDIR": str(log.parent)}
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # the part and what it has started
                process.wait()


def _trouble(status: int | None, begun: str, limit_s: float, log: Path) -> tuple[Status, str] | None:
    """What was wrong with the process itself."""
    during = f" during '{begun}'" if begun else ""
    if status is None:
        return Status.TIMED_OUT, f"not done after {limit_s:.0f} s{during}"
    if status == 0:
        return None
    words = " ".join(log.read_text(encoding="utf-8", errors="replace").split())[-_LAST_WORDS:]
    ended = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return Status.CRASHED, f"its process was {ended}{during}. Its last words: {words or 'none'}"


def _report(
    part: Part, found: Sequence[Result], begun: str, trouble: tuple[Status, str] | None, seconds: float
) -> PartReport:
    statuses = [result.status for result in found]
    if trouble is None:
        return PartReport(part.name, part.title, worst(statuses), "", seconds, found)
    status, detail = trouble
    if begun:
        found = [*found, Result(begun, status, detail)]
    return PartReport(part.name, part.title, status, detail, seconds, found)
