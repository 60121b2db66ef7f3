"""Windows of a resized picture, and turns done after the resize instead of before."""

from __future__ import annotations

import numpy as np
import pytest
from decoding import stored_as
from PIL import Image, ImageOps
from vdali.engine.decoders.window import is_swapped, stored_geometry, turned, window_of
from vdali.engine.preprocess import Geometry, PadPosition, Preprocess, ResizeMode, geometry_of

GEOMETRIES = [
    Geometry(30, 20, 7, 2, 16, 16),
    Geometry(20, 30, 2, 7, 11, 16),
    Geometry(30, 20, -3, 1, 37, 18),
    Geometry(8, 20, -4, -2, 16, 24),
    Geometry(10, 20, 0, 0, 24, 24),
]


def numbered(width: int, height: int) -> np.ndarray:
    return np.arange(1, width * height + 1, dtype=np.int32).reshape(height, width, 1)


def cropped(pixels: np.ndarray, geometry: Geometry) -> np.ndarray:
    """Crop and pad pixel by pixel, as the definition of Geometry says; 0 is padding."""
    result = np.zeros((geometry.height, geometry.width, 1), pixels.dtype)
    for y in range(geometry.height):
        for x in range(geometry.width):
            source_y, source_x = y + geometry.top, x + geometry.left
            if 0 <= source_y < pixels.shape[0] and 0 <= source_x < pixels.shape[1]:
                result[y, x] = pixels[source_y, source_x]
    return result


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_cropping_the_stored_picture_then_turning_is_cropping_the_turned_picture(orientation, geometry):
    upright = numbered(geometry.resized_width, geometry.resized_height)
    stored = np.asarray(stored_as(Image.fromarray(upright[..., 0]), orientation))[..., None]
    inside = stored_geometry(geometry, orientation)
    assert (inside.resized_width, inside.resized_height) == (stored.shape[1], stored.shape[0])
    assert np.array_equal(turned(cropped(stored, inside), orientation), cropped(upright, geometry))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_is_what_pillow_does_for_that_exif_value(orientation):
    image = Image.fromarray(numbered(7, 4)[..., 0].astype(np.uint8))
    image.getexif()[0x0112] = orientation
    wanted = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(turned(np.asarray(image)[..., None], orientation)[..., 0], wanted)
    assert is_swapped(orientation) == (wanted.shape == (7, 4))


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_window_is_where_a_crop_has_no_padding(geometry):
    filled = cropped(numbered(geometry.resized_width, geometry.resized_height), geometry) > 0
    window = window_of(geometry, geometry.resized_width * 2.0, geometry.resized_height * 3.0)
    assert filled.sum() == window.width * window.height
    assert filled[window.y : window.y + window.height, window.x : window.x + window.width].all()
    assert window.left == 2.0 * max(geometry.left, 0)
    assert window.box_height == pytest.approx(3.0 * window.height)


def test_a_window_never_reaches_past_the_source():
    for mode, pad in ((ResizeMode.SHORTER, PadPosition.CENTER), (ResizeMode.LONGEST, PadPosition.CORNER)):
        spec = Preprocess((224, 224), (224, 224), mode, pad=pad)
        for width in range(1, 400, 7):
            for height in (1, 3, 97, 5000):
                window = window_of(geometry_of(spec, width, height), width, height)
                assert window.left + window.box_width <= width
                assert window.top + window.box_height <= height
                assert window.width >= 1
                assert window.height >= 1
