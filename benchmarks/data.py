"""Photos to measure with: made once from real pictures, the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..engine.batch import Encoded
from ..engine.decoders.interface import DecodeOptions
from ..engine.decoders.jpeg import SOI, jpeg_header
from ..engine.decoders.make import DecoderName, make_decoder
from ..engine.errors import DecodeError, InputNotFoundError
from ..engine.preprocess import Preprocess

if TYPE_CHECKING:
    from PIL import Image

SEED = 0
LARGE_MEGAPIXELS = (8, 12, 16, 20)
_FEWEST_LARGE_PIXELS = 5_500_000
_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
_GRAIN_LEVELS = 4.0
"""Standard deviation of the noise that enlarged photos get: a smooth picture would decode unlike a real one."""


def make_jpegs(folder: Path, *, count: int, width: int = 500, height: int = 375, quality: int = 92) -> list[Path]:
    """``count`` baseline 4:2:0 JPEGs of about ``width`` x ``height`` pixels in ``folder``, paths in order.

    They are random views (crop of 60 to 100 %, size varied by 10 %) of the photos that scikit-image ships.
    Files that exist already are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:05d}.jpg" for number in range(count)]
    if all(path.exists() for path in paths):
        return paths
    photos = list(_demo_images())
    rng = np.random.default_rng(SEED)
    for number, path in enumerate(paths):
        size = (round(width * rng.uniform(0.9, 1.1)), round(height * rng.uniform(0.9, 1.1)))
        _view(photos[number % len(photos)], size, rng).save(path, quality=quality, subsampling=2)
    return paths


def make_large_jpegs(folder: Path, *, progressive: bool) -> list[Path]:
    """Synthetic photos of LARGE_MEGAPIXELS, 3:2, baseline or progressive 4:2:0: demo photos enlarged, with grain."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = "progressive" if progressive else "baseline"
    paths = [folder / f"{kind}-{megapixels:02d}.jpg" for megapixels in LARGE_MEGAPIXELS]
    if all(path.exists() for path in paths):
        return paths
    photos = list(_demo_images())
    rng = np.random.default_rng(SEED)
    for number, (path, megapixels) in enumerate(zip(paths, LARGE_MEGAPIXELS, strict=True)):
        short = round((megapixels * 1e6 / 1.5) ** 0.5)
        view = _view(photos[number % len(photos)], (short * 3 // 2, short), rng)
        _with_grain(view, rng).save(path, quality=90, subsampling=2, progressive=progressive)
    return paths


def large_jpegs(folder: Path) -> tuple[list[Path], list[Path]]:
    """Baseline and progressive JPEGs of at least 5.5 megapixels anywhere in ``folder``, in order of their names.

    Raises InputNotFoundError where there is none.
    """
    baseline: list[Path] = []
    progressive: list[Path] = []
    for path in sorted(found for found in folder.rglob("*") if found.is_file()):
        with path.open("rb") as file:
            start = file.read(1 << 20)
        try:
            header = jpeg_header(start) if start.startswith(SOI) else None
        except DecodeError:
            continue
        if header is not None and header.width * header.height >= _FEWEST_LARGE_PIXELS:
            (progressive if header.frame in _PROGRESSIVE else baseline).append(path)
    if not baseline and not progressive:
        raise InputNotFoundError(f"No JPEG of 5.5 megapixels or more in {folder}. Give another folder, or none.")
    return baseline, progressive


def usable_files(files: Sequence[Path], spec: Preprocess) -> tuple[list[Path], dict[Path, str]]:
    """Files that decode, and why each other one does not: one bad picture ends the pass of most systems."""
    decoder = make_decoder(DecoderName.PILLOW, spec, DecodeOptions(), max_batch=1)
    out = np.empty((1, *spec.size, 3), np.uint8)
    usable: list[Path] = []
    left_out: dict[Path, str] = {}
    for path in files:
        try:
            batch = decoder.decode([Encoded(str(path), path.read_bytes())], out)
        except OSError as error:
            left_out[path] = str(error.strerror)
            continue
        if batch.failures:
            left_out[path] = batch.failures[0].message
        else:
            usable.append(path)
    return usable, left_out


def _demo_images() -> Iterator[Image.Image]:
    from PIL import Image

    from ..engine.demo import demo_photos

    for path in demo_photos():
        with Image.open(path) as image:
            yield image.convert("RGB")


def _view(photo: Image.Image, size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """Random part of ``photo``, 60 to 100 % of each side, resized to ``size`` (width, height)."""
    from PIL import Image

    share = rng.uniform(0.6, 1.0)
    box_width, box_height = photo.width * share, photo.height * share
    left = rng.uniform(0, photo.width - box_width)
    top = rng.uniform(0, photo.height - box_height)
    return photo.resize(size, Image.Resampling.LANCZOS, box=(left, top, left + box_width, top + box_height))


def _with_grain(photo: Image.Image, rng: np.random.Generator) -> Image.Image:
    from PIL import Image

    pixels = np.asarray(photo, np.float32)
    grain = rng.standard_normal((*pixels.shape[:2], 1), np.float32) * _GRAIN_LEVELS
    return Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8))
