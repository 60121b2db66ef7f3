"""SIMD resize of one lane: fast_image_resize, the Rust crate behind cykooz-resizer, on reused memory.

Pixels are four bytes (RGB and one ignored): the crate is fastest on them, and both Pillow's RGB images and
libjpeg-turbo's RGBX output have that layout, so nothing is copied before the resize. Its filters
are Pillow's (bicubic with a = -0.5) and its results differ from Pillow's by rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from cykooz_resizer import FilterType, ResizeAlg, ResizeOptions
from cykooz_resizer.rust_lib import PilImageWrapper, RustResizer
from numpy.typing import NDArray

from ..preprocess import Geometry, Interpolation, Preprocess
from .memory import PictureMemory
from .window import UPRIGHT, Window, is_swapped, stored_geometry, turned, window_of

_KEPT_BYTES = 8 << 20

_FILTERS = {
    Interpolation.BILINEAR: (FilterType.bilinear, 1.0),
    Interpolation.BICUBIC: (FilterType.catmull_rom, 2.0),
    Interpolation.LANCZOS: (FilterType.lanczos3, 3.0),
}
"""The crate's filter and its reach in source pixels, at scale 1."""


class _Step(NamedTuple):
    """One call of the crate: ``options`` hold the source box, ``width`` and ``height`` are the result's."""

    options: Any
    width: int
    height: int


class ResizePlan(NamedTuple):
    """Everything about one resize that depends on sizes alone, so that equal sizes plan once.

    The result of ``steps`` is turned from ``orientation`` and put at (``left``, ``top``) of the row;
    ``is_whole`` says that it fills the row, without a turn.
    """

    steps: tuple[_Step, ...]
    orientation: int
    left: int
    top: int
    is_whole: bool


class SimdResizer:
    """Resizes, crops, pads and turns pictures into rows; not thread-safe, one for each lane."""

    def __init__(self, spec: Preprocess) -> None:
        self._fill = spec.fill
        self._interpolation = spec.interpolation
        filter_type, self._reach = _FILTERS[spec.interpolation]
        self._options = ResizeOptions(ResizeAlg.convolution(filter_type), use_alpha=False).rust_options
        self._resizer = RustResizer()
        self._memories = (PictureMemory(_KEPT_BYTES), PictureMemory(_KEPT_BYTES))
        self._packed = np.empty(0, np.uint8)

    def plan(self, geometry: Geometry, extent: tuple[float, float], orientation: int = UPRIGHT) -> ResizePlan:
        """Plan for a picture stored with EXIF ``orientation``; ``geometry`` is that of the upright one.

        The source covers ``extent`` (width, height) of the stored picture's pixels: all, or a fraction
        less where JPEG decoding at a DCT scale rounded the size up.
        """
        window = window_of(stored_geometry(geometry, orientation), *extent)
        is_upright = orientation == UPRIGHT
        return ResizePlan(
            self._steps(window, int(extent[1]), orientation),
            orientation,
            max(-geometry.left, 0),
            max(-geometry.top, 0),
            is_upright and (window.width, window.height) == (geometry.width, geometry.height),
        )

    def _steps(self, window: Window, height: int, orientation: int) -> tuple[_Step, ...]:
        """Pillow resizes columns first and clips to 0..255 before the rows; the crate goes rows first.

        Filters that overshoot differ by that: 0.2 level (mean) on photos, up to 6 on black and white. So
        they take two steps, unless a turn that swaps the axes makes the crate's order Pillow's.
        """
        box = (window.left, window.top, window.box_width, window.box_height)
        if self._interpolation is Interpolation.BILINEAR or is_swapped(orientation):
            return (_Step(self._options.set_crop_box(*box), window.width, window.height),)
        reach = self._reach * max(1.0, window.box_height / window.height) + 1
        first = max(0, int(window.top - reach))
        rows = min(height, int(window.top + window.box_height + reach) + 1) - first
        columns = self._options.set_crop_box(window.left, first, window.box_width, rows)
        lines = self._options.set_crop_box(0, window.top - first, window.width, window.box_height)
        return _Step(columns, window.width, rows), _Step(lines, window.width, window.height)

    def resize(self, image: PilImageWrapper, plan: ResizePlan, row: NDArray[np.uint8]) -> None:
        """Write what ``plan`` makes of ``image`` into ``row``, uint8 [height, width, 3], C order."""
        pixels = np.empty(0, np.uint8)
        for step, memory in zip(plan.steps, self._memories, strict=False):
            target = memory.view(step.width, step.height)
            self._resizer.resize_pil(image, target.image, step.options)
            pixels, image = target
        if plan.is_whole:
            pack_rgb(pixels, row)
            return
        if self._packed.size < pixels.size // 4 * 3:
            self._packed = np.empty(pixels.size // 4 * 3, np.uint8)
        packed = self._packed[: pixels.size // 4 * 3].reshape(*pixels.shape[:2], 3)
        pack_rgb(pixels, packed)
        upright = turned(packed, plan.orientation)
        row[...] = self._fill
        row[plan.top : plan.top + upright.shape[0], plan.left : plan.left + upright.shape[1]] = upright

    def release(self) -> None:
        """Give the memory back."""
        for memory in self._memories:
            memory.release()
        self._packed = np.empty(0, np.uint8)


def pack_rgb(pixels: NDArray[np.uint8], rgb: NDArray[np.uint8]) -> None:
    """Copy the first three of four bytes per pixel; both arrays are in C order.

    Each pixel is written as four bytes, three apart, so that the next one overwrites the surplus byte:
    numpy copies in ascending order (a test holds it to that). Slicing ``[..., :3]`` takes 14 times as
    long, Pillow's packing three times with cold caches.
    """
    count = pixels.size // 4
    source = pixels.reshape(-1).view(np.uint32)
    np.ndarray((count - 1,), np.uint32, rgb, 0, (3,))[...] = source[:-1]
    rgb[-1, -1] = pixels[-1, -1, :3]
