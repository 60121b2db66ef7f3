"""The reference decoder: equal, bit for bit, to the loop that a user would write with Pillow."""

from __future__ import annotations

import io

import numpy as np
import pytest
from decoding import SPECS, decode, encode, orientation_exif, photo
from PIL import Image, ImageOps
from vdali.engine.decoders.make import DecoderName
from vdali.engine.preprocess import Exif, Interpolation, Preprocess

RESAMPLING = {
    Interpolation.BILINEAR: Image.Resampling.BILINEAR,
    Interpolation.BICUBIC: Image.Resampling.BICUBIC,
    Interpolation.LANCZOS: Image.Resampling.LANCZOS,
}


def plain_loop(data: bytes, spec: Preprocess) -> np.ndarray:
    """Open, turn, convert, resize the shorter side, crop the centre: nothing of vdali."""
    image = Image.open(io.BytesIO(data))
    if spec.exif is Exif.APPLY:
        image = ImageOps.exif_transpose(image)
    image = image.convert("RGB")
    width, height = image.size
    short = spec.resize[0]
    size = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    image = image.resize(size, RESAMPLING[spec.interpolation])
    left, top = round((size[0] - spec.size[1]) / 2), round((size[1] - spec.size[0]) / 2)
    return np.asarray(image.crop((left, top, left + spec.size[1], top + spec.size[0])))


@pytest.mark.parametrize("name", ["shorter bilinear", "shorter bicubic", "shorter lanczos"])
def test_every_photo_is_bit_equal_to_a_plain_pillow_loop(shared_data, name):
    files = {path.name: path.read_bytes() for path in sorted((shared_data / "photos").rglob("*.jpg"))[::3]}
    batch = decode(DecoderName.PILLOW, SPECS[name], files)
    assert [decoded.id for decoded in batch.decoded] == list(files)
    for decoded, pixels in zip(batch.decoded, batch.pixels, strict=True):
        assert np.array_equal(pixels, plain_loop(files[decoded.id], SPECS[name])), decoded.id


@pytest.mark.parametrize("exif", Exif)
@pytest.mark.parametrize("orientation", [3, 6])
def test_the_exif_rule_is_the_specs(exif, orientation):
    spec = Preprocess((64, 64), (80, 80), exif=exif)
    data = encode(photo(200, 120), exif=orientation_exif(orientation))
    batch = decode(DecoderName.PILLOW, spec, [data])
    assert np.array_equal(batch.pixels[0], plain_loop(data, spec))
    turned = exif is Exif.APPLY and orientation == 6
    assert (batch.decoded[0].width, batch.decoded[0].height) == ((120, 200) if turned else (200, 120))


def test_a_strip_whose_resized_picture_would_be_huge_is_its_window_alone():
    """1 x 5000 pixels resized by the shorter side would be 256 x 1,280,000, a gigabyte."""
    image = photo(3, 5000).resize((1, 5000))
    batch = decode(DecoderName.PILLOW, SPECS["shorter bilinear"], [encode(image, "PNG")])
    wanted = np.asarray(image)[2499:2501].astype(float).mean(axis=(0, 1))
    assert np.abs(batch.pixels[0].mean(axis=(0, 1)) - wanted).max() < 3
