"""Pictures for tests of decoders, and short ways to decode them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from vdali.engine.batch import Batch, Encoded
from vdali.engine.decoders.interface import DecodeMode, DecodeOptions, Truncated
from vdali.engine.decoders.make import DecoderName, make_decoder
from vdali.engine.preprocess import Interpolation, PadPosition, Preprocess, ResizeMode

POISON = 0xA5
ALL_DECODERS = (DecoderName.PILLOW, DecoderName.TURBO, DecoderName.DALI)

SPECS = {
    "shorter bilinear": Preprocess((224, 224), (256, 256)),
    "shorter bicubic": Preprocess((224, 224), (256, 256), interpolation=Interpolation.BICUBIC),
    "shorter lanczos": Preprocess((160, 160), (192, 192), interpolation=Interpolation.LANCZOS),
    "squash bicubic": Preprocess((160, 224), (160, 224), ResizeMode.SQUASH, interpolation=Interpolation.BICUBIC),
    "longest center": Preprocess((224, 224), (224, 224), ResizeMode.LONGEST, fill=(9, 99, 200)),
    "longest corner": Preprocess(
        (256, 256), (256, 256), ResizeMode.LONGEST, pad=PadPosition.CORNER, fill=(124, 116, 104)
    ),
    "crop larger than resize": Preprocess((224, 224), (200, 200), fill=(1, 2, 3)),
}


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth random picture with details at several scales, as photos have; no symmetry."""
    rng = np.random.default_rng(seed)
    picture = np.zeros((height, width, 3))
    for cells, weight in ((3, 0.5), (11, 0.3), (40, 0.2)):
        small = Image.fromarray(rng.integers(0, 256, (cells, cells + 1, 3), dtype=np.uint8))
        picture += weight * np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), float)
    return Image.fromarray(picture.astype(np.uint8))


def encode(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """File content of ``image``; JPEGs have quality 90 unless told otherwise."""
    buffer = io.BytesIO()
    if kind == "JPEG":
        options = {"quality": 90, **options}
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def orientation_exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def stored_as(image: Image.Image, orientation: int) -> Image.Image:
    """The picture whose EXIF turn by ``orientation`` gives ``image``."""
    turn = Image.Transpose
    inverse = {
        1: None,
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_90,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_270,
    }[orientation]
    return image if inverse is None else image.transpose(inverse)


def decode(
    name: DecoderName,
    spec: Preprocess,
    files: Sequence[bytes] | dict[str, bytes],
    *,
    truncated: Truncated = Truncated.FAIL,
    mode: DecodeMode = DecodeMode.EXACT,
    max_pixels: int = 178_956_970,
) -> Batch:
    """Batch of ``files`` (ids are their keys or numbers), decoded into a poisoned buffer of its own."""
    named = files if isinstance(files, dict) else {str(i): data for i, data in enumerate(files)}
    samples = [Encoded(key, data) for key, data in named.items()]
    options = DecodeOptions(max_pixels=max_pixels, truncated=truncated, mode=mode)
    decoder = make_decoder(name, spec, options, max_batch=max(1, len(samples)))
    out = np.full((len(samples), *spec.size, 3), POISON, np.uint8)
    try:
        return decoder.decode(samples, out)
    finally:
        decoder.close()


def mean_difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(int) - other).mean())
