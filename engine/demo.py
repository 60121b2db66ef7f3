"""Real photos that come with an installed package, for the first run and for benchmarks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from .errors import MissingExtraError

PHOTOS = ("camera.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
"""Photos of scikit-image whose subject is one of the 1,000 ImageNet classes."""


def demo_photos() -> list[Path]:
    """Paths of the demo photos; raises MissingExtraError where scikit-image is not installed."""
    found = find_spec("skimage")
    if found is None or found.origin is None:
        raise MissingExtraError("scikit-image", "demo", "Running without INPUT (the demo photos)")
    folder = Path(found.origin).parent / "data"
    return [folder / name for name in PHOTOS]
