"""From a decoder's name to a decoder; the packages behind it are imported only then."""

from __future__ import annotations

from enum import StrEnum

from ..errors import DeviceError
from ..preprocess import Preprocess
from .interface import DecodeOptions, Decoder


class DecoderName(StrEnum):
    """Decoders that a user can ask for; ``auto`` takes the fastest one of this machine."""

    AUTO = "auto"
    TURBO = "turbo"
    DALI = "dali"
    PILLOW = "pillow"


def make_decoder(name: DecoderName, spec: Preprocess, options: DecodeOptions, *, max_batch: int) -> Decoder:
    """Decoder for one lane; ``max_batch`` is the most samples that one call will bring.

    ``auto`` is turbo. Raises DeviceError when a package that the decoder needs cannot be loaded.
    """
    try:
        if name is DecoderName.PILLOW:
            from .pillow import PillowDecoder

            return PillowDecoder(spec, options)
        if name is DecoderName.DALI:
            from .dali import DaliDecoder

            return DaliDecoder(spec, options, max_batch=max_batch)
        from .turbo import TurboDecoder

        return TurboDecoder(spec, options)
    except ImportError as error:
        raise DeviceError(
            f"Decoder '{name}' cannot be loaded: {error}. Install the package it names, or take another decoder "
            "(turbo, dali, pillow)."
        ) from error
