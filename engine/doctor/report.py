"""Values of an examination: one check per line, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Fact = str | int | float | bool | None | list[Any]


class Status(StrEnum):
    """How one thing stands.

    ``missing``: optional, and not usable here. ``warning``: works, but will hurt. ``error``: broken.
    """

    OK = "ok"
    MISSING = "missing"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: what was found and, unless all is well, what to do.

    ``facts`` holds the same as figures, with the unit in each key.
    """

    topic: str
    name: str
    status: Status
    found: str
    advice: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run would use here: ``device`` is what ``--device auto`` takes, ``reason`` why.

    ``decoders`` are those that decoded a test picture.
    """

    device: str
    reason: str
    decoders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one machine, in the order of the data path."""

    checks: tuple[Check, ...]
    verdict: Verdict

    @property
    def broken(self) -> tuple[Check, ...]:
        """Checks that ended in an error."""
        return tuple(check for check in self.checks if check.status is Status.ERROR)

    def to_json(self) -> dict[str, Any]:
        """JSON document; figures carry their unit in the key."""
        return {
            "verdict": {
                "device": self.verdict.device,
                "reason": self.verdict.reason,
                "decoders": list(self.verdict.decoders),
            },
            "checks": [
                {
                    "topic": check.topic,
                    "name": check.name,
                    "status": check.status.value,
                    "found": check.found,
                    "advice": check.advice,
                    "facts": dict(check.facts),
                }
                for check in self.checks
            ],
        }
