"""Blame: the layer that int8 costs most comes first, and keeping it mends the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from int8_models import constant, convolutional, pictures, with_constant
from onnx import ModelProto
from vdali.engine.spec import ModelSpec
from vdali.export.int8.blame import RUNS, int8_blame
from vdali.export.int8.quantize import quantize


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path / "cache"))


def spoiled() -> tuple[ModelProto, ModelSpec]:
    """One channel of the block's input is 300 times as great as the others, which the addition passes on."""
    model, spec = convolutional()
    bias, weights = constant(model, "b first").copy(), constant(model, "w block").copy()
    bias[0] = 300
    weights[:, 0] *= 1e-4
    return with_constant(with_constant(model, "b first", bias), "w block", weights), spec


def test_the_layer_that_int8_spoils_comes_first() -> None:
    model, spec = spoiled()
    int8, names = quantize(model, spec, pictures())
    blame = int8_blame(model, int8, spec, pictures(), lambda line: None)
    assert set(blame) == set(names)
    assert next(iter(blame)) == "sum"
    assert list(blame.values()) == sorted(blame.values(), reverse=True)


def test_keeping_the_first_of_the_list_takes_the_error_away_that_it_says() -> None:
    model, spec = spoiled()
    int8, _ = quantize(model, spec, pictures())
    blame = int8_blame(model, int8, spec, pictures(), lambda line: None)
    worst = next(iter(blame))
    left = quantize(model, spec, pictures(), kept=[worst])[0]
    before = sum(value for value in blame.values() if value > 0)
    after = int8_blame(model, left, spec, pictures(), lambda line: None)
    assert worst not in after
    assert sum(value for value in after.values() if value > 0) < before


def test_the_order_is_the_same_every_time() -> None:
    model, spec = convolutional()
    int8, _ = quantize(model, spec, pictures())
    first = int8_blame(model, int8, spec, pictures(), lambda line: None)
    assert first == int8_blame(model, int8, spec, pictures(), lambda line: None)


def test_trials_are_bounded_and_told_of() -> None:
    model, spec = convolutional()
    int8, names = quantize(model, spec, pictures())
    lines: list[str] = []
    int8_blame(model, int8, spec, pictures(100), lines.append)
    assert lines == ["int8: looking for the layers that cost most: 0 of 5 tried on 8 pictures."]
    assert len(names) * 8 <= RUNS


def test_a_picture_is_enough() -> None:
    model, spec = convolutional()
    int8, names = quantize(model, spec, pictures())
    blame = int8_blame(model, int8, spec, pictures(1), lambda line: None)
    assert set(blame) == set(names)
    assert np.isfinite(list(blame.values())).all()
