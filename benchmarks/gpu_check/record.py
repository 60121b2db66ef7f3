"""What checks find, written down as they go, so that what was found survives a crash of the process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ...engine.errors import MissingExtraError


class Status(StrEnum):
    """How a check, or a whole part, has ended. ``refused`` is a refusal that had to come, so it is good."""

    PASSED = "passed"
    REFUSED = "refused"
    MISSING = "missing"
    NOT_RUN = "not run"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"

    @property
    def is_bad(self) -> bool:
        return self in (Status.FAILED, Status.TIMED_OUT, Status.CRASHED)


@dataclass(frozen=True, slots=True)
class Found:
    """What a check that passed has to tell; ``numbers`` have their units in their names."""

    detail: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """Something to prove or to measure. ``work`` raises whatever it likes when it does not hold."""

    name: str
    work: Callable[[], Found]


class CheckFailedError(Exception):
    """A check that does not hold; the message says what was expected and what was found."""


class MissingError(Exception):
    """What a check needs is not here; the message says what to install."""


class RefusedError(Exception):
    """The project refused what it has to refuse; the message is the refusal's."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one check has ended."""

    name: str
    status: Status
    detail: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"status": self.status.value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Result:
        return cls(values["name"], Status(values["status"]), values["detail"], values["numbers"])


def run_checks(checks: Iterable[Check], path: Path) -> None:
    """Run each check and append how it ended to ``path``, a JSON document per line; none keeps another from running."""
    for check in checks:
        _append(path, {"begun": check.name})
        _append(path, _result(check).to_json())


def read_results(path: Path) -> tuple[list[Result], str]:
    """Results of a file that ``run_checks`` has written, and the check that had begun when it broke off, or ''."""
    results: list[Result] = []
    begun = ""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        values = json.loads(line)
        if "begun" in values:
            begun = values["begun"]
        else:
            results.append(Result.from_json(values))
            begun = ""
    return results, begun


def worst(statuses: Sequence[Status]) -> Status:
    """The status of a whole: the worst of its checks'; nothing that ran and passed outweighs what is missing."""
    order = (Status.CRASHED, Status.TIMED_OUT, Status.FAILED, Status.PASSED, Status.REFUSED, Status.MISSING)
    return next((status for status in order if status in statuses), Status.NOT_RUN)


def _result(check: Check) -> Result:
    try:
        found = check.work()
    except CheckFailedError as error:
        return Result(check.name, Status.FAILED, str(error))
    except MissingError as error:
        return Result(check.name, Status.MISSING, str(error))
    except RefusedError as error:
        return Result(check.name, Status.REFUSED, str(error))
    except MissingExtraError as error:
        return Result(check.name, Status.MISSING, str(error))
    except ModuleNotFoundError as error:
        return Result(check.name, Status.MISSING, f"{error}. Install it, or leave this part out.")
    except Exception as error:  # whatever a check raises is its result
        return Result(check.name, Status.FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}")
    return Result(check.name, Status.PASSED, found.detail, found.numbers)


def _append(path: Path, values: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")
