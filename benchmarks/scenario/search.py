"""The largest rate whose p99 latency holds a bound, found on a system that answers with noise.

Knows neither a load generator nor a clock: a trial is a function from a rate to the p99 latency that was seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CONFIRMATIONS = 3
BEYOND = 1.3
"""A found rate is held against this much more, which must fail: a search that ended too low shows itself."""

_CLEAR = 2.0
"""A p99 this many times away from the bound, either way, needs no second trial."""
_HALVINGS = 8

Trial = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class RateTrial:
    """One trial: ``rate`` in samples/s, the p99 latency in seconds, and which part of the search asked for it."""

    rate: float
    latency_p99_s: float
    passed: bool
    phase: str

    def to_json(self) -> dict[str, Any]:
        return {
            "phase": self.phase,
            "rate_samples_per_s": self.rate,
            "latency_p99_s": self.latency_p99_s,
            "passed": self.passed,
        }


@dataclass(frozen=True, slots=True)
class RateFound:
    """What a search found: ``rate`` in samples/s, None where none held.

    ``confirmations`` of CONFIRMATIONS trials in a row passed at that rate; ``fails_beyond`` says whether BEYOND times
    the rate fails.
    """

    rate: float | None
    confirmations: int
    fails_beyond: bool
    trials: tuple[RateTrial, ...]

    @property
    def is_confirmed(self) -> bool:
        return self.rate is not None and self.confirmations == CONFIRMATIONS and self.fails_beyond


class _SpentError(Exception):
    """All the trials that were allowed are used up."""


@dataclass(slots=True)
class _Search:
    trial: Trial
    bound_s: float
    step: float
    most_trials: int
    say: Callable[[str], None]
    trials: list[RateTrial] = field(default_factory=list)

    def once(self, rate: float, phase: str) -> RateTrial:
        if len(self.trials) >= self.most_trials:
            raise _SpentError
        latency_s = self.trial(rate)
        found = RateTrial(rate, latency_s, latency_s <= self.bound_s, phase)
        self.trials.append(found)
        verdict = "holds" if found.passed else "fails"
        self.say(f"{phase}: {rate:.4g} samples/s, p99 {1e3 * latency_s:.4g} ms: {verdict}")
        return found

    def holds(self, rate: float, phase: str) -> bool:
        """Whether ``rate`` holds: at once where the first trial is clear, else by the majority of three."""
        passed = failed = 0
        while max(passed, failed) < 2:
            found = self.once(rate, phase)
            is_clear = not self.bound_s / _CLEAR < found.latency_p99_s <= self.bound_s * _CLEAR
            if is_clear and not passed + failed:
                return found.passed
            passed += found.passed
            failed += not found.passed
        return passed > failed

    def bracket(self, start: float) -> tuple[float, float] | None:
        """A rate that holds and one that fails, a power of two apart; None where no rate holds."""
        if self.holds(start, "exponential"):
            return self.bracket_above(start)
        low = start / 2
        for _ in range(_HALVINGS):
            if self.holds(low, "exponential"):
                return low, 2 * low
            low /= 2
        return None

    def bracket_above(self, low: float) -> tuple[float, float]:
        """The same from ``low``, which is known to hold."""
        while self.holds(2 * low, "exponential"):
            low *= 2
        return low, 2 * low

    def narrowed(self, low: float, high: float) -> float:
        """Largest rate that holds, within ``step``."""
        while high / low > 1 + self.step:
            middle = math.sqrt(low * high)
            if self.holds(middle, "binary"):
                low = middle
            else:
                high = middle
        return low

    def confirmed(self, rate: float) -> float:
        """``rate``, or the first of a few steps below it, at which every confirmation passes."""
        while not all(self.once(rate, "confirm").passed for _ in range(CONFIRMATIONS)):
            rate /= 1 + self.step
        return rate


def largest_rate(
    trial: Trial,
    *,
    bound_s: float,
    start: float,
    step: float = 0.05,
    most_trials: int = 60,
    say: Callable[[str], None] | None = None,
) -> RateFound:
    """Largest rate (samples/s) whose p99 latency stays within ``bound_s``, to within ``step``.

    Rates are doubled (or halved) from ``start`` until one holds and one fails, narrowed by halving the ratio between
    them, and confirmed: CONFIRMATIONS trials in a row must pass, else the rate goes down a step. BEYOND times the found
    rate must then fail; where it holds, noise misled the search, and it goes on from there. After ``most_trials``
    trials it ends with what it has: a rate that was confirmed, else one that never failed.
    """
    search = _Search(trial, bound_s, step, most_trials, say or _silent)
    rate: float | None = None
    fails_beyond = False
    try:
        bracket = search.bracket(start)
        while bracket is not None and not fails_beyond:
            rate = search.confirmed(search.narrowed(*bracket))
            fails_beyond = not search.holds(BEYOND * rate, "beyond")
            if not fails_beyond:
                bracket = search.bracket_above(BEYOND * rate)
    except _SpentError:
        search.say(f"{most_trials} trials are used up")
    rate = rate if rate is not None else _best_so_far(search.trials)
    return RateFound(rate, _in_a_row(search.trials, rate), fails_beyond, tuple(search.trials))


def _best_so_far(trials: list[RateTrial]) -> float | None:
    """Largest rate with a trial that passed and none that failed."""
    failed = {trial.rate for trial in trials if not trial.passed}
    return max((trial.rate for trial in trials if trial.passed and trial.rate not in failed), default=None)


def _in_a_row(trials: list[RateTrial], rate: float | None) -> int:
    """Confirmations at ``rate`` that passed since the last one there that did not."""
    count = 0
    for trial in trials:
        if trial.phase == "confirm" and trial.rate == rate:
            count = count + 1 if trial.passed else 0
    return count


def _silent(line: str) -> None:
    del line
