"""Which formats are opened, by whom, and what is said of bytes that are none of them.

Pillow's ``Image.open`` is not used: it tries every plugin that is loaded (PostScript, fonts, text formats),
and its pixel cap is one global number that warns at half of it. Here the formats are listed, the cap is
the caller's, and no global of Pillow is changed, so decoders of several lanes do not meet.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import BytesIO

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    DdsImagePlugin,
    GifImagePlugin,
    IcoImagePlugin,
    Image,
    ImageFile,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PcxImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    QoiImagePlugin,
    SgiImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from ..errors import DecodeError, MissingExtraError
from . import sizes

_FORMATS = (
    PngImagePlugin.PngImageFile,
    WebPImagePlugin.WebPImageFile,
    GifImagePlugin.GifImageFile,
    TiffImagePlugin.TiffImageFile,
    BmpImagePlugin.BmpImageFile,
    Jpeg2KImagePlugin.Jpeg2KImageFile,
    PpmImagePlugin.PpmImageFile,
    IcoImagePlugin.IcoImageFile,
    DdsImagePlugin.DdsImageFile,
    QoiImagePlugin.QoiImageFile,
    SgiImagePlugin.SgiImageFile,
    PcxImagePlugin.PcxImageFile,
)

_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}

Opener = Callable[[BytesIO], ImageFile.ImageFile]


def silence_pillow() -> None:
    """Hide warnings of Pillow and its plugins (odd EXIF, palettes, large sizes): rules here cover them.

    ``warnings.catch_warnings`` would not be thread-safe, so this is one filter for the process.
    """
    warnings.filterwarnings("ignore", module=r"(PIL|pillow_jxl|pillow_heif)(\.|$)")


def check_pixels(width: int, height: int, max_pixels: int) -> None:
    """Raise DecodeError ``too_large`` when a header declares more than ``max_pixels``."""
    if width * height > max_pixels:
        raise DecodeError(
            "too_large",
            f"{width}x{height} pixels are more than the cap of {max_pixels}. Raise --max-pixels if the file is to be "
            "trusted.",
        )


def open_jpeg(data: bytes) -> ImageFile.ImageFile:
    """JPEG through Pillow, not decoded yet; of a multi-picture file, the first picture."""
    return JpegImagePlugin.JpegImageFile(BytesIO(data))


def open_picture(data: bytes, max_pixels: int) -> ImageFile.ImageFile:
    """Any format but JPEG, header read, nothing decoded, pixel cap held.

    Raises DecodeError ``not_an_image``, ``unsupported`` (a format that needs an extra, or pixels of
    a kind Pillow cannot read) or ``too_large``; what Pillow raises on a bad header passes through.
    """
    opener, declared = _opener_of(data)
    if declared is not None:
        check_pixels(*declared, max_pixels)
    picture = opener(BytesIO(data))
    check_pixels(*picture.size, max_pixels)
    return picture


def _opener_of(data: bytes) -> tuple[Opener, tuple[int, int] | None]:
    if sizes.is_jxl(data):
        return _jxl_opener(), sizes.jxl_size(data)
    if data[4:8] == b"ftyp":
        return _isobmff_opener(data), sizes.isobmff_size(data)
    prefix = data[:16]
    for factory in _FORMATS:
        accept = Image.OPEN[factory.format][1]
        if accept is not None and accept(prefix) is True:
            return factory, sizes.webp_size(data) if factory is WebPImagePlugin.WebPImageFile else None
    raise DecodeError("not_an_image", f"Not an image format that is read here: the bytes begin with {prefix!r}.")


def _isobmff_opener(data: bytes) -> Opener:
    brands = {data[8:12], *(data[i : i + 4] for i in range(16, min(int.from_bytes(data[:4], "big"), 256), 4))}
    if brands & _AVIF_BRANDS:
        return AvifImagePlugin.AvifImageFile
    if brands & _HEIF_BRANDS:
        return _heif_opener()
    raise DecodeError("not_an_image", f"A media file of brand {data[8:12]!r}, not a still picture.")


def _heif_opener() -> Opener:
    try:
        from pillow_heif.as_plugin import HeifImageFile
    except ImportError:
        raise DecodeError("unsupported", str(MissingExtraError("pillow-heif", "heif", "A HEIC picture"))) from None
    return HeifImageFile


def _jxl_opener() -> Opener:
    try:
        from pillow_jxl.JpegXLImagePlugin import JXLImageFile
    except ImportError:
        missing = MissingExtraError("pillow-jxl-plugin", "jxl", "A JPEG XL picture")
        raise DecodeError("unsupported", str(missing)) from None
    return JXLImageFile
