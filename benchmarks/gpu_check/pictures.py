"""Pictures for the checks: smooth as photos are, seeded, no file needed."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_EXIF_ORIENTATION = 0x0112


@functools.lru_cache(maxsize=4)
def smooth_pixels(count: int, side: int, *, seed: int = 0) -> NDArray[np.uint8]:
    """uint8 [count, side, side, 3]: few random colours, blended, and some grain. Not to be written to."""
    rng = np.random.default_rng(seed)
    cells = 7
    corners = rng.uniform(0, 255, (count, cells + 1, cells + 1, 3)).astype(np.float32)
    at = np.linspace(0, cells, side, endpoint=False, dtype=np.float32)
    low = at.astype(np.int64)
    share = (at - low)[:, None]
    rows = corners[:, low] * (1 - share[..., None]) + corners[:, low + 1] * share[..., None]
    mixed = rows[:, :, low] * (1 - share) + rows[:, :, low + 1] * share
    grain = rng.integers(-10, 11, (1, side, side, 1), dtype=np.int8)
    levels: NDArray[np.uint8] = np.clip(mixed + grain, 0, 255).astype(np.uint8)
    return levels


def smooth_jpeg(
    seed: int, width: int, height: int, *, subsampling: int = 2, orientation: int = 1, quality: int = 92
) -> bytes:
    """A JPEG file; ``subsampling`` 2 is 4:2:0, 0 is 4:4:4."""
    from PIL import Image

    pixels = smooth_pixels(1, max(width, height), seed=seed)[0, :height, :width]
    exif = Image.Exif()
    exif[_EXIF_ORIENTATION] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling=subsampling, exif=exif)
    return file.getvalue()


def photo_sized_jpegs(count: int) -> Sequence[bytes]:
    """JPEGs of about 500 x 375, as ImageNet has them."""
    rng = np.random.default_rng(1)
    sizes = rng.integers((450, 340), (550, 410), (count, 2)).tolist()
    return [smooth_jpeg(number, *size) for number, size in enumerate(sizes)]


def broken_jpeg() -> bytes:
    """A JPEG that looks whole from outside and that no decoder reads: its Huffman tables are gone."""
    data = smooth_jpeg(3, 320, 240)
    tables = data.index(b"\xff\xc4") + 4
    return data[:tables] + b"\xff" * 20 + data[tables + 20 :]
