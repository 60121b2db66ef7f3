"""Pictures for calibration: from any source, bounded, the same every time, bad ones counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from models import plain_preprocess
from pictures import encoded, number_of, write_numbered
from vdali.engine.errors import InputNotFoundError, UsageError
from vdali.engine.sources.memory import MemorySource
from vdali.engine.spec import ModelSpec, Task
from vdali.export import calibration
from vdali.export.calibration import CalibrationSet, calibration_set

SPEC = ModelSpec("toy", Task.EMBED, plain_preprocess((8, 8)), raw_output="embedding")


def numbers_in(pictures: CalibrationSet) -> list[int]:
    return [number_of(picture.mean(axis=(0, 1))) for picture in pictures.pixels]


def test_each_picture_stands_beside_its_own_id(tmp_path: Path) -> None:
    write_numbered(tmp_path, 20)
    pictures = calibration_set(tmp_path, SPEC)
    assert len(pictures) == 20
    assert numbers_in(pictures) == [int(name[:4]) for name in pictures.ids]
    assert not pictures.skipped


def test_bad_pictures_are_skipped_and_counted(tmp_path: Path) -> None:
    write_numbered(tmp_path, 20, bad=frozenset({0, 7, 10, 19}))
    (tmp_path / "dead.jpg").symlink_to(tmp_path / "nothing.jpg")
    pictures = calibration_set(tmp_path, SPEC)
    assert len(pictures) == 16
    assert numbers_in(pictures) == [int(name[:4]) for name in pictures.ids]
    assert {failure.id[:4] for failure in pictures.skipped} == {"0000", "0007", "0010", "0019", "dead"}
    assert "5 skipped" in pictures.description


def test_a_folder_without_a_usable_picture_is_an_error_that_says_what_was_seen(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "cut.jpg").write_bytes(encoded(1, "JPEG", (60, 60))[:200])
    with pytest.raises(InputNotFoundError, match=r"1 images listed, 1 unusable; the first: cut\.jpg: .*seen: 1 .*txt"):
        calibration_set(tmp_path, SPEC)


def test_the_draw_is_spread_over_the_source_and_the_same_each_time(tmp_path: Path) -> None:
    samples = [(f"{number:04d}.png", encoded(number, "PNG", (9, 9))) for number in range(300)]
    pictures = calibration_set(MemorySource(samples), SPEC, limit=30)
    numbers = numbers_in(pictures)
    assert len(numbers) == 30
    assert numbers == sorted(numbers)
    assert min(numbers) < 60
    assert max(numbers) > 240
    assert calibration_set(MemorySource(samples), SPEC, limit=30).ids == pictures.ids


def test_content_changes_with_ids_pixels_and_nothing_else() -> None:
    red, green = encoded(5, "PNG", (9, 9)), encoded(80, "PNG", (9, 9))
    first = calibration_set(MemorySource([("a", red), ("b", green)]), SPEC)
    assert calibration_set(MemorySource([("a", red), ("b", green)]), SPEC).content == first.content
    assert calibration_set(MemorySource([("a", red), ("c", green)]), SPEC).content != first.content
    assert calibration_set(MemorySource([("a", red), ("b", red)]), SPEC).content != first.content
    assert calibration_set(MemorySource([("a", red)]), SPEC).content != first.content


def test_batches_hold_all_pictures_once_and_in_order() -> None:
    samples = [(str(number), encoded(number, "PNG", (9, 9))) for number in range(7)]
    pictures = calibration_set(MemorySource(samples), SPEC)
    batches = list(pictures.batches(3))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert np.array_equal(np.concatenate(batches), pictures.pixels)


def test_half_is_every_other_picture_with_a_content_of_its_own() -> None:
    samples = [(str(number), encoded(number, "PNG", (9, 9))) for number in range(7)]
    pictures = calibration_set(MemorySource(samples), SPEC)
    half = pictures.half()
    assert half.ids == ("0", "2", "4", "6")
    assert numbers_in(half) == [0, 2, 4, 6]
    assert half.content != pictures.content
    alone = calibration_set(MemorySource(samples[:1]), SPEC)
    assert alone.half() is alone


def test_big_pictures_lower_the_number_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "MAX_BYTES", 5 * 8 * 8 * 3)
    samples = [(str(number), encoded(number, "PNG", (9, 9))) for number in range(9)]
    pictures = calibration_set(MemorySource(samples), SPEC)
    assert pictures.pixels.nbytes == calibration.MAX_BYTES
    assert "no more fit" in pictures.description


def test_without_inputs_the_demo_photos_and_crops_of_them_are_taken_and_named_so() -> None:
    pictures = calibration_set(None, SPEC)
    assert len(pictures) == calibration.DEMO_PICTURES
    assert len(np.unique(pictures.pixels, axis=0)) == len(pictures)
    assert "demo photos and seeded crops" in pictures.description
    assert calibration_set(None, SPEC).content == pictures.content
    assert calibration_set(None, SPEC, limit=3).ids == pictures.ids[:3]


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="limit"):
        calibration_set(None, SPEC, limit=0)
