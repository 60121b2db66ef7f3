"""What a decoder is: encoded samples in, one dense uint8 batch out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..batch import Batch, Encoded

DEFAULT_MAX_PIXELS = 178_956_970
"""Pixel cap: twice Pillow's MAX_IMAGE_PIXELS, the size at which Pillow itself refuses."""


class Truncated(StrEnum):
    """What becomes of a picture that ends early: a failure, or a flagged row."""

    FAIL = "fail"
    SALVAGE = "salvage"


class DecodeMode(StrEnum):
    """``fast`` may decode large JPEGs at a DCT scale; ``exact`` never does."""

    FAST = "fast"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Rules for bytes that are not plain: size cap in pixels, truncated files, DCT scaling."""

    max_pixels: int = DEFAULT_MAX_PIXELS
    truncated: Truncated = Truncated.FAIL
    mode: DecodeMode = DecodeMode.FAST


class Decoder(Protocol):
    """Decodes, resizes and crops into a caller's buffer; one decoder serves one lane at a time."""

    name: str

    def decode(self, samples: Sequence[Encoded], out: NDArray[np.uint8]) -> Batch:
        """Fill ``out`` (uint8 [capacity, height, width, 3], capacity >= len(samples)).

        Returns a Batch whose ``pixels`` is the dense view ``out[:n]`` of the n survivors, in the
        order of ``samples``; every other sample is one of its failures. Never raises for a bad
        picture.
        """
        ...

    def close(self) -> None: ...
