"""The general decode: bytes of any format to one upright RGB picture, by one written rule for each kind.

Every decoder comes here with what its own fast path cannot take, so one spec gives one picture.

- Frames: the first of an animation, the first page, the largest icon.
- Orientation: EXIF (or XMP, where EXIF is silent) as Pillow's ``exif_transpose`` does; a TIFF is turned
  by Pillow itself whatever the EXIF rule is.
- Alpha is dropped, not composited, as timm, torchvision and open_clip do through ``convert("RGB")``.
- Palettes, bilevel and grey are expanded; CMYK, YCbCr and Lab are converted as Pillow does.
- 16-bit grey becomes ``round(v / 257)``; Pillow would clip it at 255. 16-bit colour keeps its high byte,
  as Pillow reads it. 32-bit integers and floats have no agreed white: they are refused.
- ICC profiles are not applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile

from ..errors import DecodeError
from ..preprocess import Exif
from .formats import check_pixels, open_jpeg, open_picture
from .interface import DecodeOptions, Truncated
from .jpeg import EOI, SOI, jpeg_header

_ENDS_EARLY = (
    "truncated",
    "Truncated",
    "not enough",
    "unexpected end",
    "Unexpected end",
    "no more",
    "buffer is not large",
)
_EOI_PADDING = EOI * 32768
"""Enough to end a JPEG that stops anywhere, even inside a marker segment (64 KiB at most)."""
_MOST_MISSING = 0.9
_ORIENTATION_TAG = 0x0112
_LEVEL_OF_16_BITS = ((np.arange(65536) + 128) // 257).astype(np.uint8)
"""round(v / 257) for v = 0..65535; 257 is odd, so there are no ties."""
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Picture(NamedTuple):
    """A decoded upright picture, mode RGB; ``salvaged`` when the file broke off and part of it is missing."""

    image: Image.Image
    salvaged: bool


def rgb_from_bytes(data: bytes, options: DecodeOptions, exif: Exif) -> Picture:
    """Decode any supported format through Pillow, thread-safely.

    Raises DecodeError with kind ``empty``, ``not_an_image``, ``unsupported``, ``too_large``,
    ``truncated`` or ``corrupt``.
    """
    if not data:
        raise DecodeError("empty", "The file has no bytes.")
    if data.startswith(SOI):
        image, salvaged, orientation = _jpeg(data, options)
    else:
        image, salvaged, orientation = _other(data, options)
    if salvaged and _missing_share(image) > _MOST_MISSING:
        raise DecodeError("truncated", "The file breaks off before a tenth of its pixels: too little to salvage.")
    with _as_decode_errors():
        rgb = _rgb(image)
        if exif is Exif.APPLY and orientation in _TRANSPOSITIONS:
            rgb = rgb.transpose(_TRANSPOSITIONS[orientation])
    return Picture(rgb, salvaged)


def _jpeg(data: bytes, options: DecodeOptions) -> tuple[Image.Image, bool, int]:
    header = jpeg_header(data)
    check_pixels(header.width, header.height, options.max_pixels)
    try:
        return _loaded_jpeg(data), False, header.orientation
    except DecodeError as error:
        if error.kind != "truncated" or options.truncated is Truncated.FAIL:
            raise
    return _loaded_jpeg(data + _EOI_PADDING), True, header.orientation


def _other(data: bytes, options: DecodeOptions) -> tuple[Image.Image, bool, int]:
    with _as_decode_errors():
        image = open_picture(data, options.max_pixels)
    salvaged = False
    try:
        with _as_decode_errors():
            image.load()
    except DecodeError as error:
        if options.truncated is Truncated.FAIL or error.kind not in ("truncated", "corrupt"):
            raise
        image.tile = []  # what is decoded so far is in the image; without tiles it is taken as it is
        salvaged = True
    return image, salvaged, _orientation(image)


def _loaded_jpeg(data: bytes) -> Image.Image:
    with _as_decode_errors():
        image = open_jpeg(data)
        image.load()
    return image


def _missing_share(image: Image.Image) -> float:
    """Share of pixels that were never decoded: 0 in all channels, or the middle grey of a JPEG without data."""
    with _as_decode_errors():
        pixels = np.asarray(image)
    missing = (pixels >= 127) & (pixels <= 129) if image.format == "JPEG" else pixels == 0
    return float((missing.all(axis=2) if missing.ndim == 3 else missing).mean())


def _orientation(image: ImageFile.ImageFile) -> int:
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except (SyntaxError, ValueError, TypeError, LookupError, OSError, ArithmeticError):
        return 1  # EXIF that Pillow cannot parse says nothing
    return value if isinstance(value, int) else 1


def _rgb(image: Image.Image) -> Image.Image:
    image.info.pop("transparency", None)  # dropped like alpha
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        return Image.fromarray(_LEVEL_OF_16_BITS[np.asarray(image)]).convert("RGB")
    if image.mode in ("I", "F"):
        raise DecodeError(
            "unsupported",
            f"{image.format} with {'32-bit integer' if image.mode == 'I' else 'float'} pixels, which have no agreed "
            "white level. Convert it to 8 or 16 bits.",
        )
    return image.convert("RGB")


@contextmanager
def _as_decode_errors() -> Iterator[None]:
    """Turn whatever a bad file makes Pillow and its plugins raise into one DecodeError."""
    try:
        yield
    except DecodeError:
        raise
    except (MemoryError, Image.DecompressionBombError) as error:
        reason = str(error).rstrip(".") or "out of memory"
        raise DecodeError(
            "too_large", f"Too large to decode: {reason}. Raise --max-pixels if the file is to be trusted."
        ) from error
    except Exception as error:
        raise DecodeError(_kind_of(error), f"{type(error).__name__}: {error}") from error


def _kind_of(error: Exception) -> str:
    text = str(error)
    if any(words in text for words in _ENDS_EARLY):
        return "truncated"
    if isinstance(error, SyntaxError) and "unknown pixel mode" in text:
        return "unsupported"
    return "corrupt"
