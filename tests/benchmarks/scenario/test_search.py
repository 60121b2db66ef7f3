"""The search for the largest rate, on simulated systems whose p99 latency is known."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from vdali.benchmarks.scenario.run import declared_server
from vdali.benchmarks.scenario.search import BEYOND, RateFound, largest_rate

SERVICE_S = 0.01
BOUND_S = 0.06
STEP = 0.05


def share_within(rate: float, seconds: float) -> float:
    """Share of M/D/1 queries whose waiting time is at most ``seconds`` (Erlang, 1909)."""
    load = rate * SERVICE_S
    if load >= 1:
        return 0.0
    terms = (
        (-1) ** k
        * (rate * (seconds - k * SERVICE_S)) ** k
        / math.factorial(k)
        * math.exp(rate * (seconds - k * SERVICE_S))
        for k in range(int(seconds / SERVICE_S) + 1)
    )
    return (1 - load) * sum(terms)


def p99_s(rate: float) -> float:
    """p99 of waiting and service together; infinite where the queue only grows."""
    if rate * SERVICE_S >= 1:
        return math.inf
    low, high = 0.0, 0.6
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if share_within(rate, middle) >= 0.99 else (middle, high)
    return high + SERVICE_S


def true_rate() -> float:
    low, high = 1.0, 1 / SERVICE_S
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if p99_s(middle) <= BOUND_S else (low, middle)
    return low


class PoissonQueue:
    """One server with a fixed service time under Poisson arrivals, really simulated, with spells of other work."""

    def __init__(self, *, queries: int, hiccups: float = 0.0) -> None:
        self._rng = np.random.default_rng(0)
        self._queries = queries
        self._hiccups = hiccups

    def __call__(self, rate: float) -> float:
        arrivals = np.cumsum(self._rng.exponential(1 / rate, self._queries))
        spell_s = 0.5 if self._rng.random() < self._hiccups else 0.0
        free_s, latencies = spell_s, []
        for arrival in arrivals:
            free_s = max(free_s, arrival) + SERVICE_S
            latencies.append(free_s - arrival)
        return float(np.quantile(latencies, 0.99, method="inverted_cdf"))


def test_the_closed_form_agrees_with_a_simulation():
    assert p99_s(70.0) == pytest.approx(PoissonQueue(queries=200_000)(70.0), rel=0.05)


@pytest.mark.parametrize("start", [2.0, 24.0, 80.0, 5000.0])
def test_the_found_rate_is_the_true_one_within_the_step_wherever_the_search_starts(start):
    found = largest_rate(p99_s, bound_s=BOUND_S, start=start, step=STEP)
    assert found.rate is not None
    assert true_rate() / (1 + STEP) <= found.rate <= true_rate()
    assert found.is_confirmed
    assert found.confirmations == 3
    assert p99_s(BEYOND * found.rate) > BOUND_S


def test_rates_go_up_by_doubling_and_then_close_in():
    trials = largest_rate(p99_s, bound_s=BOUND_S, start=10.0, step=STEP).trials
    phases = [trial.phase for trial in trials]
    assert phases == sorted(phases, key=["exponential", "binary", "confirm", "beyond"].index)
    doubled = sorted({trial.rate for trial in trials if trial.phase == "exponential"})
    assert all(b == 2 * a for a, b in pairwise(doubled))


def test_noise_of_short_trials_costs_a_few_steps_at_most():
    found = largest_rate(PoissonQueue(queries=400), bound_s=BOUND_S, start=20.0, step=STEP)
    assert found.is_confirmed
    assert found.rate is not None
    assert true_rate() / (1 + STEP) ** 5 <= found.rate <= true_rate() * (1 + STEP) ** 2


def test_spells_of_other_work_do_not_end_the_search_far_too_low():
    found = largest_rate(
        PoissonQueue(queries=400, hiccups=0.1), bound_s=BOUND_S, start=20.0, step=STEP, most_trials=200
    )
    assert found.is_confirmed
    assert found.rate is not None
    assert BEYOND * found.rate > true_rate() / (1 + STEP)


def test_where_no_rate_holds_that_is_the_result():
    found = largest_rate(lambda rate: 0.5, bound_s=BOUND_S, start=20.0)
    assert found.rate is None
    assert not found.is_confirmed
    assert len(found.trials) < 12
    lowest = min(trial.rate for trial in found.trials)
    assert declared_server(found, BOUND_S) == f"server: no rate holds p99 <= 60 ms; at {lowest:.4g}/s p99 is 500 ms"


def test_a_system_that_never_settles_costs_no_more_than_the_trials_allowed():
    rng = np.random.default_rng(1)
    found = largest_rate(lambda rate: float(rng.uniform(0, 2 * BOUND_S)), bound_s=BOUND_S, start=20.0, most_trials=25)
    assert len(found.trials) == 25
    assert not found.is_confirmed


def test_the_declared_line_says_how_far_it_is_confirmed():
    found = largest_rate(p99_s, bound_s=BOUND_S, start=10.0)
    text = declared_server(found, BOUND_S)
    assert f"samples/s at p99 <= 60 ms (3 of 3 confirmations; {BEYOND}x of it fails: p99 " in text
    spent = RateFound(50.0, 1, fails_beyond=False, trials=())
    assert "1 of 3 confirmations; 1.3x of it was not tried: the trials were used up" in declared_server(spent, BOUND_S)
