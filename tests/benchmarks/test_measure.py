from __future__ import annotations

import pytest
from vdali.benchmarks.measure import Spread, alternate, percentile, ratio


def test_a_spread_is_minimum_median_and_maximum():
    assert Spread.of([5.0, 1.0, 3.0]) == Spread(1.0, 3.0, 5.0)
    assert Spread.of([4.0, 1.0, 3.0, 2.0]).median == 2.5


def test_a_spread_survives_json():
    spread = Spread(1.0, 2.0, 4.0)
    assert Spread.from_json(spread.to_json()) == spread
    assert spread.to_json() == {"min": 1.0, "median": 2.0, "max": 4.0}


def test_a_spread_reads_as_median_and_range():
    assert Spread(1.0, 2.04, 3.0).text(1) == "2.0 (1.0 to 3.0)"


def test_a_ratio_is_taken_pair_by_pair():
    # a machine that slows down to half between the rounds changes nothing
    assert ratio([4.0, 8.0], [2.0, 4.0]) == Spread(2.0, 2.0, 2.0)
    assert ratio([4.0, 8.0, 9.0], [2.0, 2.0, 3.0]) == Spread(2.0, 3.0, 4.0)


def test_a_ratio_of_unequal_numbers_of_rounds_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


def test_works_take_turns_and_the_warm_up_is_not_kept():
    order: list[str] = []

    def work(name: str) -> int:
        order.append(name)
        return len(order)

    results = alternate({"a": lambda: work("a"), "b": lambda: work("b")}, rounds=2)
    assert "".join(order) == "ababab"
    assert results == {"a": [3, 5], "b": [4, 6]}


def test_a_percentile_is_the_nearest_rank():
    values = [float(v) for v in range(100, 0, -1)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1.0) == 100
    assert percentile([7.0], 0.99) == 7
    assert percentile([7.0, 8.0], 0.0) == 7
