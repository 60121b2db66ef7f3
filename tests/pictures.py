"""Pictures whose colour tells the number of their file, and the ways to damage them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

KINDS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
_SUFFIX = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "TIFF": "tif", "GIF": "gif", "PPM": "ppm"}
STEP = 16
BASE = 8


def colour_of(number: int) -> tuple[int, int, int]:
    """Colour of file ``number`` (0..4095): one base-16 digit per channel, 16 levels apart."""
    digits = number % 16, number // 16 % 16, number // 256 % 16
    return tuple(BASE + STEP * digit for digit in digits)  # type: ignore[return-value]


def number_of(mean: np.ndarray) -> int:
    """File number whose colour is nearest to ``mean`` [3], levels 0..255."""
    digits = np.clip(np.rint((np.asarray(mean) - BASE) / STEP), 0, 15).astype(int)
    return int(digits[0] + 16 * digits[1] + 256 * digits[2])


def encoded(number: int, kind: str, size: tuple[int, int]) -> bytes:
    """File content: one even colour, ``size`` is (width, height)."""
    image = Image.new("RGB", size, colour_of(number))
    buffer = io.BytesIO()
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    if kind == "GIF":
        image = image.convert("P", palette=Image.Palette.ADAPTIVE, colors=2)
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write_numbered(
    folder: Path, count: int, *, bad: frozenset[int] = frozenset(), kinds: tuple[str, ...] = KINDS, seed: int = 0
) -> list[Path]:
    """``count`` files of mixed kinds and sizes; those in ``bad`` are cut, emptied or not pictures at all."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    paths = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        width, height = (int(v) for v in rng.integers(9, 400, 2))
        data = encoded(number, kind, (width, height))
        if number in bad:
            data = (b"", data[: len(data) // 2], b"<html>404</html>", data[:12])[number % 4]
        path = folder / f"{number:04d}.{_SUFFIX[kind]}"
        path.write_bytes(data)
        paths.append(path)
    return paths
