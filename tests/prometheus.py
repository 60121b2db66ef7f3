"""Reads Prometheus' text format, strictly."""

from __future__ import annotations

import re

SAMPLE_LINE = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)(\{[a-z]+="(?:[^"\\]|\\.)*"(?:,[a-z]+="(?:[^"\\]|\\.)*")*\})? (\S+)')


def values_of(text: str) -> dict[str, float]:
    """Values by series; fails where a line is not in Prometheus' text format or a name has no TYPE before it."""
    values: dict[str, float] = {}
    typed: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            assert line.split()[3] in {"counter", "gauge"}
            assert line.split()[2] not in typed
            typed.add(line.split()[2])
        elif not line.startswith("# HELP "):
            match = SAMPLE_LINE.fullmatch(line)
            assert match, line
            assert match[1] in typed
            values[match[1] + (match[2] or "")] = float(match[3])
    return values
