"""Memory that a lane reuses for pictures of four bytes per pixel, seen by numpy, Pillow and the resizer alike.

First touching fresh memory can cost as much as decoding into it, and mapping it for Pillow and the resizer
costs about 60 microseconds with cold caches: both are done once for each size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from cykooz_resizer.rust_lib import PilImageWrapper
from numpy.typing import NDArray
from PIL import Image

_KEPT_VIEWS = 512


class View(NamedTuple):
    """One picture's memory: ``pixels`` uint8 [height, width, 4], ``image`` the same for the resizer."""

    pixels: NDArray[np.uint8]
    image: PilImageWrapper


class PictureMemory:
    """Grows to the largest picture, up to ``kept_bytes``; what is larger is allocated for one use.

    All views share one memory: the next picture overwrites the last one.
    """

    def __init__(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        self._memory = np.empty(0, np.uint8)
        self._views: dict[tuple[int, int], View] = {}

    def view(self, width: int, height: int) -> View:
        """Memory for one picture of ``width`` x ``height`` pixels; its content is whatever was there."""
        view = self._views.get((width, height))
        if view is not None:
            return view
        size = width * height * 4
        if size > self._kept_bytes:
            return _view(np.empty(size, np.uint8), width, height)
        if size > self._memory.size:
            self.release()
            # doubling, so that pictures which get larger one by one do not each cost a new memory
            self._memory = np.empty(min(1 << size.bit_length(), self._kept_bytes), np.uint8)
        elif len(self._views) >= _KEPT_VIEWS:
            self._views.clear()
        view = _view(self._memory, width, height)
        self._views[width, height] = view
        return view

    def release(self) -> None:
        """Give the memory back."""
        self._views.clear()
        self._memory = np.empty(0, np.uint8)


def _view(memory: NDArray[np.uint8], width: int, height: int) -> View:
    pixels = memory[: width * height * 4].reshape(height, width, 4)
    # "CMYK" is the one mode of four channels without alpha that Pillow can map
    image = Image.frombuffer("CMYK", (width, height), pixels, "raw", "CMYK", 0, 1)
    image.readonly = 0
    return View(pixels, PilImageWrapper(image))
