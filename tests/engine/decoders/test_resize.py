"""The SIMD resize against Pillow's, and the packing that relies on numpy's copy order."""

from __future__ import annotations

import numpy as np
import pytest
from cykooz_resizer.rust_lib import PilImageWrapper
from decoding import POISON, SPECS, mean_difference, photo
from PIL import Image
from vdali.engine.decoders.memory import PictureMemory
from vdali.engine.decoders.pillow import resize_with_pillow
from vdali.engine.decoders.resize import SimdResizer, pack_rgb
from vdali.engine.preprocess import Interpolation, Preprocess, ResizeMode, geometry_of


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 1), (7, 5), (224, 224), (513, 129), (1000, 1003)])
def test_packing_drops_every_fourth_byte_and_touches_nothing_else(shape):
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 4), dtype=np.uint8)
    rows = np.full((3, *shape, 3), POISON, np.uint8)
    pack_rgb(pixels, rows[1])
    assert np.array_equal(rows[1], pixels[..., :3])
    assert (rows[0] == POISON).all()
    assert (rows[2] == POISON).all()


def resized(image: Image.Image, spec: Preprocess) -> tuple[np.ndarray, np.ndarray]:
    geometry = geometry_of(spec, *image.size)
    ours = np.full((*spec.size, 3), POISON, np.uint8)
    pillows = ours.copy()
    resizer = SimdResizer(spec)
    resizer.resize(PilImageWrapper(image), resizer.plan(geometry, image.size), ours)
    resize_with_pillow(image, geometry, spec, pillows)
    return ours, pillows


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("size", [(500, 375), (100, 150), (31, 17), (1, 1), (2, 900), (1800, 1201)])
def test_every_mode_and_filter_is_pillows_within_a_rounding(name, size):
    ours, pillows = resized(photo(*size), SPECS[name])
    assert mean_difference(ours, pillows) <= 0.3
    assert np.abs(ours.astype(int) - pillows).max() <= 2


@pytest.mark.parametrize("interpolation", Interpolation)
def test_black_and_white_edges_are_pillows_too(interpolation):
    """Where filters overshoot, the order of the two passes shows."""
    noise = np.random.default_rng(1).random((400, 640)) > 0.5
    image = Image.fromarray(noise).convert("RGB")
    spec = Preprocess((224, 224), (256, 256), interpolation=interpolation)
    ours, pillows = resized(image, spec)
    assert mean_difference(ours, pillows) <= 0.3
    assert np.abs(ours.astype(int) - pillows).max() <= 2


def test_a_picture_of_the_input_size_passes_unchanged():
    image = photo(224, 160)
    ours, _ = resized(image, Preprocess((160, 224), (160, 224), ResizeMode.SQUASH, Interpolation.BICUBIC))
    assert np.array_equal(ours, np.asarray(image))


def test_memory_grows_is_shared_and_is_not_kept_beyond_its_limit():
    memory = PictureMemory(kept_bytes=1 << 20)
    small = memory.view(100, 50)
    assert small.pixels.shape == (50, 100, 4)
    assert memory.view(100, 50) is small
    assert np.shares_memory(memory.view(50, 50).pixels, small.pixels)
    large = memory.view(400, 400)
    assert np.shares_memory(memory.view(100, 50).pixels, large.pixels)
    giant = memory.view(1000, 1000)
    assert not np.shares_memory(giant.pixels, large.pixels)
    assert memory.view(1000, 1000) is not giant
    memory.release()
    assert not np.shares_memory(memory.view(100, 50).pixels, large.pixels)


def test_memory_of_many_sizes_stays_bounded():
    memory = PictureMemory(kept_bytes=1 << 20)
    first = memory.view(500, 400)
    for width in range(1, 3000):
        memory.view(width, 3)
    assert np.shares_memory(memory.view(500, 400).pixels, first.pixels)
    assert len(memory._views) <= 512
