"""A calibration is used again for just the same model, preprocessing, pictures and tools, and for nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
from int8_models import attending, constant, convolutional, pictures, with_constant
from vdali.engine.preprocess import Preprocess
from vdali.export.int8 import cache as int8_cache
from vdali.export.int8.cache import cached_calibration, calibration_key
from vdali.export.int8.layers import int8_places


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def calibrated(model, spec, made):
    """The calibration, and whether it came from the cache."""
    lines: list[str] = []
    calibration = cached_calibration(model, spec, int8_places(model), made, lines.append)
    return calibration, "from the cache" in lines[0], lines


def test_the_same_again_is_a_hit_with_the_same_values() -> None:
    model, spec = convolutional()
    first, hit, _ = calibrated(model, spec, pictures())
    assert not hit
    second, hit, _ = calibrated(model, spec, pictures())
    assert hit
    assert second.ranges == first.ranges
    assert set(second.shifts) == set(first.shifts)
    for name, shift in first.shifts.items():
        np.testing.assert_array_equal(second.shifts[name], shift)


def test_one_changed_weight_is_a_miss() -> None:
    model, spec = convolutional()
    calibrated(model, spec, pictures())
    values = constant(model, "w block").copy()
    values[2, 1, 0, 0] += 1e-3
    assert not calibrated(with_constant(model, "w block", values), spec, pictures())[1]


@pytest.mark.parametrize("changes", [{"mean": (0.1, 0.0, 0.0)}, {"std": (1.0, 1.0, 0.9)}, {"resize": (20, 20)}])
def test_other_preprocessing_is_a_miss(changes: dict[str, tuple[float, ...]]) -> None:
    model, spec = convolutional()
    calibrated(model, spec, pictures())
    other = dataclasses.replace(spec, preprocess=dataclasses.replace(spec.preprocess, **changes))
    assert isinstance(other.preprocess, Preprocess)
    assert not calibrated(model, other, pictures())[1]


def test_other_pictures_are_a_miss() -> None:
    model, spec = convolutional()
    calibrated(model, spec, pictures())
    assert not calibrated(model, spec, pictures(seed=1))[1]


def test_another_version_of_a_tool_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    model, spec = convolutional()
    calibrated(model, spec, pictures())
    monkeypatch.setattr(int8_cache, "version", lambda tool: f"{tool} of tomorrow")
    assert not calibrated(model, spec, pictures())[1]


def test_two_models_with_the_same_names_of_layers_do_not_meet() -> None:
    model, spec = attending()
    other = with_constant(model, "w out", constant(model, "w out") * 2)
    assert calibration_key(model, spec, pictures()) != calibration_key(other, spec, pictures())
    one, two = calibrated(model, spec, pictures())[0], calibrated(other, spec, pictures())[0]
    assert not np.array_equal(one.shifts["product"], two.shifts["product"])


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "hello",
        lambda text: "[]",
        lambda text: text.replace('"ranges"', '"changes"'),
        lambda text: text.replace('"sum": ', '"sum": 1'),
        lambda text: json.dumps(json.loads(text) | {"key": "0" * 64}),
        lambda text: json.dumps(json.loads(text) | {"shifts": {"first": "AAAA"}}),
    ],
    ids=["cut off", "text", "list", "other names", "other range", "other key", "other shifts"],
)
def test_a_damaged_file_is_measured_and_written_again(cache: Path, damage) -> None:
    model, spec = convolutional()
    first, _, _ = calibrated(model, spec, pictures())
    (file,) = (cache / "calibration").iterdir()
    whole = file.read_text()
    file.write_text(damage(whole))
    again, hit, _ = calibrated(model, spec, pictures())
    assert not hit
    assert again.ranges == first.ranges
    assert file.read_text() == whole


def test_nothing_but_the_file_is_left_in_the_cache(cache: Path) -> None:
    calibrated(*convolutional(), pictures())
    assert [path.suffix for path in (cache / "calibration").iterdir()] == [".json"]


def test_a_cache_that_cannot_be_written_is_told_of_and_does_no_harm(tmp_path: Path, monkeypatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("VDALI_CACHE", os.fspath(blocked))
    calibration, hit, lines = calibrated(*convolutional(), pictures())
    assert not hit
    assert calibration.ranges
    assert lines[-1].startswith("The int8 ranges are not kept: ")
