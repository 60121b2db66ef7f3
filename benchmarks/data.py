"""Photos to measure with: made once from real pictures, the same on every machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SEED = 0


def make_jpegs(folder: Path, *, count: int, width: int = 500, height: int = 375, quality: int = 92) -> list[Path]:
    """``count`` baseline 4:2:0 JPEGs of about ``width`` x ``height`` pixels in ``folder``, paths in order.

    They are random views (crop of 60 to 100 %, size varied by 10 %) of the photos that scikit-image ships.
    Files that exist already are kept.
    """
    from PIL import Image

    from ..engine.demo import demo_photos

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:05d}.jpg" for number in range(count)]
    if all(path.exists() for path in paths):
        return paths
    photos = []
    for path in demo_photos():
        with Image.open(path) as image:
            photos.append(image.convert("RGB"))
    rng = np.random.default_rng(SEED)
    for number, path in enumerate(paths):
        photo = photos[number % len(photos)]
        share = rng.uniform(0.6, 1.0)
        box_width, box_height = photo.width * share, photo.height * share
        left = rng.uniform(0, photo.width - box_width)
        top = rng.uniform(0, photo.height - box_height)
        size = (round(width * rng.uniform(0.9, 1.1)), round(height * rng.uniform(0.9, 1.1)))
        view = photo.resize(size, Image.Resampling.LANCZOS, box=(left, top, left + box_width, top + box_height))
        view.save(path, quality=quality, subsampling=2)
    return paths
