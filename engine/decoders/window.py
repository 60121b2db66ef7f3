"""From a Geometry to what a resizer needs: which part of the source, where it goes, how it is turned.

An EXIF turn is done on the small result, not on the source: the geometry is mapped to the stored
orientation, and the resized window is turned.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..preprocess import Geometry

UPRIGHT = 1

_TURNS = {
    1: (False, False, False),
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}
"""EXIF orientation -> (swap axes, then mirror x, then mirror y) that makes the stored picture upright."""


class Window(NamedTuple):
    """Visible part of a resized picture.

    Source pixels ``left``, ``top``, ``box_width``, ``box_height`` (fractional) become ``width`` x
    ``height`` pixels, which sit at (``x``, ``y``) of the input; what is left of it is padding.
    """

    left: float
    top: float
    box_width: float
    box_height: float
    width: int
    height: int
    x: int
    y: int


def window_of(geometry: Geometry, source_width: float, source_height: float) -> Window:
    """Visible window of ``geometry``, whose source covers ``source_width`` x ``source_height``."""
    left = max(geometry.left, 0)
    top = max(geometry.top, 0)
    width = min(geometry.left + geometry.width, geometry.resized_width) - left
    height = min(geometry.top + geometry.height, geometry.resized_height) - top
    scale_x = source_width / geometry.resized_width
    scale_y = source_height / geometry.resized_height
    box_left = left * scale_x
    box_top = top * scale_y
    return Window(
        box_left,
        box_top,
        min(width * scale_x, source_width - box_left),
        min(height * scale_y, source_height - box_top),
        width,
        height,
        left - geometry.left,
        top - geometry.top,
    )


def is_swapped(orientation: int) -> bool:
    """Whether an EXIF orientation exchanges width and height."""
    return _TURNS[orientation][0]


def mirrors(orientation: int) -> tuple[bool, bool]:
    """Whether x and y are mirrored after the axes are swapped (where they are)."""
    return _TURNS[orientation][1:]


def stored_geometry(geometry: Geometry, orientation: int) -> Geometry:
    """Geometry in the stored picture whose result, turned, is ``geometry`` of the upright one."""
    if orientation == UPRIGHT:
        return geometry
    swap, mirror_x, mirror_y = _TURNS[orientation]
    left, top = geometry.left, geometry.top
    if mirror_x:
        left = geometry.resized_width - left - geometry.width
    if mirror_y:
        top = geometry.resized_height - top - geometry.height
    if swap:
        return Geometry(geometry.resized_height, geometry.resized_width, top, left, geometry.height, geometry.width)
    return Geometry(geometry.resized_width, geometry.resized_height, left, top, geometry.width, geometry.height)


def turned(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Upright view of ``pixels`` [height, width, channels], stored with an EXIF ``orientation``."""
    swap, mirror_x, mirror_y = _TURNS[orientation]
    if swap:
        pixels = np.swapaxes(pixels, 0, 1)
    return pixels[:: -1 if mirror_y else 1, :: -1 if mirror_x else 1]
