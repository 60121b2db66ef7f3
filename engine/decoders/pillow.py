"""The reference decoder: Pillow alone, pixel for pixel what a plain Pillow loop over the spec gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..batch import Batch, Decoded, Encoded
from ..preprocess import Geometry, Interpolation, Preprocess, geometry_of
from .each import decode_each
from .formats import silence_pillow
from .interface import DecodeOptions
from .picture import rgb_from_bytes
from .window import window_of

_MAX_RESIZED_PIXELS = 1 << 24
_RESAMPLING = {
    Interpolation.BILINEAR: Image.Resampling.BILINEAR,
    Interpolation.BICUBIC: Image.Resampling.BICUBIC,
    Interpolation.LANCZOS: Image.Resampling.LANCZOS,
}


class PillowDecoder:
    """Decodes every format through Pillow and resizes with Pillow, at full size (no DCT scaling)."""

    name = "pillow"

    def __init__(self, spec: Preprocess, options: DecodeOptions) -> None:
        silence_pillow()
        self._spec = spec
        self._options = options

    def decode(self, samples: Sequence[Encoded], out: NDArray[np.uint8]) -> Batch:
        return decode_each(samples, out, self._decode_one)

    def close(self) -> None:
        """Nothing is held between batches."""

    def _decode_one(self, sample: Encoded, row: NDArray[np.uint8]) -> Decoded:
        picture = rgb_from_bytes(sample.data, self._options, self._spec.exif)
        width, height = picture.image.size
        geometry = geometry_of(self._spec, width, height)
        resize_with_pillow(picture.image, geometry, self._spec, row)
        return Decoded(sample.id, width, height, self.name, picture.salvaged)


def resize_with_pillow(image: Image.Image, geometry: Geometry, spec: Preprocess, row: NDArray[np.uint8]) -> None:
    """Resize, crop and pad an RGB image into ``row``, uint8 [height, width, 3].

    A resized picture above 16 megapixels (a strip of 1 x 5000 pixels would become 256 x 1,280,000) is
    never made whole: only its visible window is, which can differ from the crop by one level.
    """
    window = window_of(geometry, *image.size)
    resampling = _RESAMPLING[spec.interpolation]
    if geometry.resized_width * geometry.resized_height > _MAX_RESIZED_PIXELS:
        left, top = window.left, window.top
        box = (left, top, left + window.box_width, top + window.box_height)
        visible = image.resize((window.width, window.height), resampling, box=box)
    else:
        resized = image.resize((geometry.resized_width, geometry.resized_height), resampling)
        left, top = max(geometry.left, 0), max(geometry.top, 0)
        visible = resized.crop((left, top, left + window.width, top + window.height))
    if (window.width, window.height) != (geometry.width, geometry.height):
        row[...] = spec.fill
    row[window.y : window.y + window.height, window.x : window.x + window.width] = np.asarray(visible)
