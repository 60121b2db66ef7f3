"""Ranges that cost least, over samples of real tensors."""

from __future__ import annotations

import numpy as np
import pytest
from int8_models import constant, convolutional, pictures, with_constant
from vdali.engine.errors import ModelError
from vdali.export.int8.ranges import best_range, measure_int8_ranges


def test_evenly_spread_values_keep_their_whole_range() -> None:
    values = np.random.default_rng(0).uniform(0, 6, 20_000).astype(np.float32)
    assert best_range(values, 6.0) == pytest.approx(6.0, rel=0.02)


def test_a_lone_outlier_is_cut_but_never_below_a_quarter() -> None:
    values = np.abs(np.random.default_rng(0).normal(0, 1, 20_000)).astype(np.float32)
    assert 2 < best_range(values, 8.0) < 5
    assert best_range(values, 1000.0) == pytest.approx(250)


def test_pixel_levels_keep_a_step_of_one() -> None:
    levels = np.abs(np.arange(256, dtype=np.float32) - 128)
    assert best_range(levels, 128.0) == pytest.approx(127.0)


def test_what_is_always_zero_has_the_range_zero() -> None:
    assert best_range(np.zeros(10, np.float32), 0.0) == 0


def test_ranges_reach_as_far_as_the_values_of_all_pictures() -> None:
    model, _ = convolutional()
    made = pictures(9)
    ranges = measure_int8_ranges(model, ("centred", "first relu"), made)
    greatest = np.abs(made.pixels.astype(np.float32) - 128).max()
    assert greatest * 0.75 <= ranges["centred"] <= greatest
    assert 0 < ranges["first relu"] < 100


@pytest.mark.parametrize("opset", [13, 18])
def test_ranges_are_the_same_every_time(opset: int) -> None:
    model, _ = convolutional(opset=opset)
    sources = ("centred", "first relu", "sum", "flat")
    assert measure_int8_ranges(model, sources, pictures()) == measure_int8_ranges(model, sources, pictures())


def test_nan_in_an_activation_is_refused_by_name() -> None:
    model, _ = convolutional()
    bias = np.full_like(constant(model, "b first"), np.inf)
    with pytest.raises(ModelError, match="makes NaN or infinity in 'first relu'"):
        measure_int8_ranges(with_constant(model, "b first", bias), ("first relu",), pictures())
