from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from vdali.benchmarks.data import LARGE_MEGAPIXELS, large_jpegs, make_jpegs, make_large_jpegs, usable_files
from vdali.engine.errors import InputNotFoundError
from vdali.engine.preprocess import Preprocess


def test_photos_are_made_once_and_are_the_same_everywhere(tmp_path: Path):
    first = make_jpegs(tmp_path / "a", count=6, width=100, height=80)
    again = make_jpegs(tmp_path / "b", count=6, width=100, height=80)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    first[0].write_bytes(b"kept")
    make_jpegs(tmp_path / "a", count=6, width=100, height=80)
    assert first[0].read_bytes() == b"kept"
    sizes = set()
    for path in again:
        with Image.open(path) as image:
            sizes.add(image.size)
    assert len(sizes) > 1
    assert all(90 <= width <= 110 and 72 <= height <= 88 for width, height in sizes)


def test_large_photos_are_baseline_or_progressive_of_the_sizes_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vdali.benchmarks.data.LARGE_MEGAPIXELS", (6,))
    made = make_large_jpegs(tmp_path, progressive=False) + make_large_jpegs(tmp_path, progressive=True)
    baseline, progressive = large_jpegs(tmp_path)
    assert [*baseline, *progressive] == made
    with Image.open(made[1]) as image:
        assert image.info["progressive"]
        assert image.width * image.height == pytest.approx(6e6, rel=0.01)
        # grain: no real photo is as smooth as an enlarged one
        assert np.abs(np.diff(np.asarray(image.convert("L"), int), axis=1)).mean() > 2
    assert min(LARGE_MEGAPIXELS) >= 6


def test_a_folder_without_large_photos_is_told(tmp_path: Path):
    make_jpegs(tmp_path, count=2)
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(InputNotFoundError, match="No JPEG of"):
        large_jpegs(tmp_path)


def test_files_that_do_not_decode_are_left_out_with_their_reason(tmp_path: Path):
    photos = make_jpegs(tmp_path, count=3)
    photos[1].write_bytes(photos[1].read_bytes()[:2000])
    missing = tmp_path / "missing.jpg"
    usable, left_out = usable_files([*photos, missing], Preprocess(size=(8, 8), resize=(8, 8)))
    assert usable == [photos[0], photos[2]]
    assert list(left_out) == [photos[1], missing]
    assert left_out[missing] == "No such file or directory"
    assert left_out[photos[1]]
