"""Probes in processes of their own: a library that crashes or hangs becomes a line of the report.

All are started first and collected afterwards, so they run side by side.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_S = 30.0
"""Longest time for one probe; importing DALI takes about 2 s from a local disk, more from a slow network."""

MAX_TEXT = 300
"""Longest error text in characters."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe found: ``facts``, or ``error`` in one sentence, which is empty when it went well."""

    facts: dict[str, Any] = field(default_factory=dict)
    error: str = ""


class Probe:
    """A function of ``probes`` that runs in a child process from now on."""

    def __init__(self, name: str, *arguments: str, timeout_s: float = TIMEOUT_S) -> None:
        self._deadline_s = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        code = f"from {__package__}.probes import main; main()"
        # -P: a file called pynvml.py in the current folder is not the package
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, name, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
        )

    def answer(self) -> Answer:
        """Wait for the child; a crash or the time-out is the answer's error."""
        try:
            out, err = self._process.communicate(timeout=max(0.0, self._deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return Answer(error=f"gave no answer within {self._timeout_s:.0f} s")
        code = self._process.returncode
        if code < 0:
            return Answer(error=f"crashed ({_signal_name(-code)})")
        lines = out.decode(errors="replace").splitlines()
        if code > 0 or not lines:
            return Answer(error=shortened(err.decode(errors="replace")) or f"ended with status {code}")
        # the libraries may print before it
        values = json.loads(lines[-1])
        return Answer(values["facts"], values["error"])


def shortened(text: str) -> str:
    """Last non-empty line of ``text``, cut to a length that fits a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    return last if len(last) <= MAX_TEXT else last[:MAX_TEXT] + "..."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
