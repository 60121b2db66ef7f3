"""The default decoder of the CPU: libjpeg-turbo and a SIMD resize on memory that is reused.

JPEGs with 8 bits and 1 or 3 components are decoded here, at a DCT scale where they are much larger than
needed; all else (other formats, rare samplings, damaged files) goes through the general decode and the
same resize. libjpeg-turbo is strict: whatever it so much as warns of, Pillow judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from ..batch import Batch, Decoded, Encoded
from ..preprocess import Exif, Geometry, Preprocess, geometry_of
from .each import decode_each
from .formats import check_pixels, silence_pillow
from .general import GeneralDecoder
from .interface import DecodeMode, DecodeOptions
from .jpeg import SOI, JpegHeader, jpeg_header
from .memory import PictureMemory
from .resize import ResizePlan, SimdResizer
from .window import UPRIGHT, is_swapped, stored_geometry

_KEPT_BYTES = 48 << 20
_KEPT_PLANS = 4096

_FEWEST_DECODED_PER_RESIZED = {1: 4.0, 2: 4.0, 4: 3.0}
"""Eighths of the full size that libjpeg-turbo decodes with SIMD, and the decoded pixels that each needs for one
resized pixel to stay within 0.5 level (mean) of the full decode.

Measured on 19 photos of 1.5 to 20 megapixels, all filters, inputs of 64 to 518 pixels: 0.41 at most. With 3
at one and two eighths it was up to 0.62, with 2 at four up to 0.89.
"""


class _JpegPlan(NamedTuple):
    """What follows from a JPEG's size and orientation: upright size, decoded size, resize."""

    width: int
    height: int
    decoded_width: int
    decoded_height: int
    resize: ResizePlan


class TurboDecoder:
    """Decodes JPEGs with simplejpeg, everything else with Pillow; one instance for each lane."""

    name = "turbo"

    def __init__(self, spec: Preprocess, options: DecodeOptions) -> None:
        silence_pillow()
        self._spec = spec
        self._options = options
        self._resizer = SimdResizer(spec)
        self._general = GeneralDecoder(spec, options, self._resizer)
        self._memory = PictureMemory(_KEPT_BYTES)
        self._plans: dict[tuple[int, int, int], _JpegPlan] = {}

    def decode(self, samples: Sequence[Encoded], out: NDArray[np.uint8]) -> Batch:
        return decode_each(samples, out, self._decode_one)

    def close(self) -> None:
        self._memory.release()
        self._resizer.release()

    def _decode_one(self, sample: Encoded, row: NDArray[np.uint8]) -> Decoded:
        if sample.data.startswith(SOI):
            header = jpeg_header(sample.data)
            check_pixels(header.width, header.height, self._options.max_pixels)
            if header.components != 4:
                try:
                    return self._decode_jpeg(sample, header, row)
                except ValueError:
                    pass  # a warning or an error of libjpeg-turbo: the general decode judges the file
        return self._general.decode_one(sample, row)

    def _decode_jpeg(self, sample: Encoded, header: JpegHeader, row: NDArray[np.uint8]) -> Decoded:
        key = (header.width, header.height, header.orientation)
        plan = self._plans.get(key) or self._new_plan(*key)
        target = self._memory.view(plan.decoded_width, plan.decoded_height)
        simplejpeg.decode_jpeg(
            sample.data,
            "RGBX",
            min_width=plan.decoded_width,
            min_height=plan.decoded_height,
            buffer=target.pixels,
        )
        self._resizer.resize(target.image, plan.resize, row)
        return Decoded(sample.id, plan.width, plan.height, self.name)

    def _new_plan(self, width: int, height: int, orientation: int) -> _JpegPlan:
        key = (width, height, orientation)
        if self._spec.exif is Exif.IGNORE:
            orientation = UPRIGHT
        upright = (height, width) if is_swapped(orientation) else (width, height)
        geometry = geometry_of(self._spec, *upright)
        eighths = 8
        if self._options.mode is DecodeMode.FAST:
            eighths = dct_eighths(width, height, stored_geometry(geometry, orientation))
        resize = self._resizer.plan(geometry, (width * eighths / 8, height * eighths / 8), orientation)
        if len(self._plans) >= _KEPT_PLANS:
            self._plans.clear()
        plan = _JpegPlan(*upright, (width * eighths + 7) // 8, (height * eighths + 7) // 8, resize)
        self._plans[key] = plan
        return plan


def dct_eighths(width: int, height: int, geometry: Geometry) -> int:
    """Eighths of the full size to decode a ``width`` x ``height`` JPEG at: 1, 2, 4 or 8 (all).

    The smallest that leaves enough pixels for the resize, in both directions.
    """
    enough = min(width / geometry.resized_width, height / geometry.resized_height)
    for eighths, fewest in _FEWEST_DECODED_PER_RESIZED.items():
        if enough * eighths >= fewest * 8:
            return eighths
    return 8
