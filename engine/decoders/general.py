"""Where fast decoders send what they cannot take: the general decode, then the SIMD resize."""

from __future__ import annotations

import numpy as np
from cykooz_resizer.rust_lib import PilImageWrapper
from numpy.typing import NDArray

from ..batch import Decoded, Encoded
from ..preprocess import Preprocess, geometry_of
from .interface import DecodeOptions
from .picture import rgb_from_bytes
from .resize import SimdResizer


class GeneralDecoder:
    """Decodes any format into a row; one instance for each lane, which frees its memory."""

    def __init__(self, spec: Preprocess, options: DecodeOptions, resizer: SimdResizer) -> None:
        self._spec = spec
        self._options = options
        self._resizer = resizer

    def decode_one(self, sample: Encoded, row: NDArray[np.uint8]) -> Decoded:
        """Fill ``row``, uint8 [height, width, 3]; raises DecodeError."""
        picture = rgb_from_bytes(sample.data, self._options, self._spec.exif)
        width, height = picture.image.size
        plan = self._resizer.plan(geometry_of(self._spec, width, height), (width, height))
        self._resizer.resize(PilImageWrapper(picture.image), plan, row)
        return Decoded(sample.id, width, height, "pillow", picture.salvaged)
