"""The fast path: the same JPEG pixels as Pillow, the same verdicts, DCT scales, bounded memory."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from decoding import SPECS, decode, encode, mean_difference, orientation_exif, photo
from PIL import Image
from vdali.engine.batch import Encoded
from vdali.engine.decoders.interface import DecodeMode, DecodeOptions, Truncated
from vdali.engine.decoders.make import DecoderName
from vdali.engine.decoders.turbo import TurboDecoder, dct_eighths
from vdali.engine.preprocess import Geometry, Interpolation, Preprocess, ResizeMode

TURBO, PILLOW = DecoderName.TURBO, DecoderName.PILLOW


def edges() -> Image.Image:
    """Sharp red and blue stripes: chroma upsampling shows on them."""
    pixels = np.zeros((90, 124, 3), np.uint8)
    pixels[:, ::6, 0] = pixels[:, 1::6, 0] = pixels[::5, :, 2] = 255
    return Image.fromarray(pixels)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_decoded_pixels_are_bit_equal_to_pillows(subsampling, progressive):
    for image in (edges(), edges().convert("L"), photo(123, 77)):
        data = encode(image, subsampling=subsampling, progressive=progressive)
        spec = Preprocess(image.size[::-1], image.size[::-1], ResizeMode.SQUASH)  # so the resize does nothing
        batch = decode(TURBO, spec, [data])
        assert batch.decoded[0].decoder == "turbo"
        assert np.array_equal(batch.pixels[0], np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_a_jpeg_that_keeps_rgb_is_not_taken_for_ycbcr():
    data = encode(photo(60, 40), keep_rgb=True)
    spec = Preprocess((40, 60), (40, 60), ResizeMode.SQUASH)
    batch = decode(TURBO, spec, [data])
    assert np.array_equal(batch.pixels[0], np.asarray(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {}),
        ("RGB", {"progressive": True}),
        ("RGB", {"restart_marker_rows": 1}),
        ("RGB", {"progressive": True, "restart_marker_rows": 1, "quality": 40}),
        ("L", {"optimize": True}),
        ("CMYK", {}),
    ],
)
def test_turbo_and_pillow_judge_200_cuts_alike(mode, options):
    data = encode(photo(96, 80, seed=3).convert(mode), **options)
    rng = random.Random(5)
    cuts = sorted({*range(len(data) - 8, len(data) + 1), *(rng.randrange(len(data)) for _ in range(200))})
    files = {str(cut): data[:cut] for cut in cuts}
    for truncated in Truncated:
        turbo, pillow = (
            decode(name, Preprocess((8, 8), (8, 8)), files, truncated=truncated) for name in (TURBO, PILLOW)
        )
        assert [(d.id, d.salvaged) for d in turbo.decoded] == [(d.id, d.salvaged) for d in pillow.decoded]
        assert [(f.id, f.kind) for f in turbo.failures] == [(f.id, f.kind) for f in pillow.failures]
        whole = [d.id for d in turbo.decoded if not d.salvaged]
        assert whole == [str(len(data))], "a file without its end marker is truncated, whatever decodes it"


def test_flipped_bits_end_alike():
    data = bytearray(encode(photo(160, 120, seed=4)))
    rng = random.Random(6)
    files = []
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(3):
            damaged[rng.randrange(2, len(data))] ^= 1 << rng.randrange(8)
        files.append(bytes(damaged))
    turbo, pillow = (decode(name, Preprocess((64, 64), (64, 64)), files) for name in (TURBO, PILLOW))
    assert [d.id for d in turbo.decoded] == [d.id for d in pillow.decoded]
    assert [(f.id, f.kind) for f in turbo.failures] == [(f.id, f.kind) for f in pillow.failures]
    assert mean_difference(turbo.pixels, pillow.pixels) < 0.3
    assert 5 < len(turbo.decoded) < 60


def test_what_libjpeg_turbo_warns_of_is_counted_as_pillows(shared_data):
    names = ["junk_jpeg_header.jpg", "dali_410.jpg", "weird_sampling_2.jpeg", "cymk.jpg", "hopper.jpg", "hopper.webp"]
    files = {name: (shared_data / "awkward" / name).read_bytes() for name in names}
    batch = decode(TURBO, SPECS["shorter bilinear"], files)
    assert [d.decoder for d in batch.decoded] == ["pillow"] * 4 + ["turbo", "pillow"]


@pytest.mark.parametrize(
    ("size", "resized", "eighths"),
    [
        ((4000, 3000), (341, 256), 4),
        ((8192, 8192), (256, 256), 1),
        ((8191, 8192), (256, 256), 2),
        ((4096, 4096), (256, 256), 2),
        ((4095, 4095), (256, 256), 4),
        ((1536, 1536), (256, 256), 4),
        ((1535, 1536), (256, 256), 8),
        ((500, 375), (341, 256), 8),
        ((9000, 300), (224, 224), 8),
    ],
)
def test_a_dct_scale_leaves_enough_pixels_on_both_sides(size, resized, eighths):
    assert dct_eighths(*size, Geometry(*resized, 0, 0, 224, 224)) == eighths


@pytest.mark.parametrize("interpolation", Interpolation)
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_jpeg_at_a_dct_scale_is_the_full_decode_within_half_a_level(interpolation, progressive, orientation):
    data = encode(photo(1507, 2003), progressive=progressive, exif=orientation_exif(orientation))
    for side in (64, 96, 224, 300):
        spec = Preprocess((side, side), (side, side), interpolation=interpolation)
        fast = decode(TURBO, spec, [data], mode=DecodeMode.FAST)
        exact = decode(PILLOW, spec, [data])
        assert fast.decoded == [type(fast.decoded[0])("0", *exact_size(exact), "turbo")]
        assert mean_difference(fast.pixels, exact.pixels) <= 0.5


def exact_size(batch) -> tuple[int, int]:
    return batch.decoded[0].width, batch.decoded[0].height


def test_real_photos_at_a_dct_scale_stay_within_half_a_level(shared_data):
    files = {path.name: path.read_bytes() for path in sorted((shared_data / "photos").rglob("*_1*.jpg"))[::2]}
    for spec in (
        Preprocess((64, 64), (64, 64)),
        Preprocess((160, 160), (160, 160), interpolation=Interpolation.BICUBIC),
    ):
        fast = decode(TURBO, spec, files, mode=DecodeMode.FAST)
        exact = decode(PILLOW, spec, files)
        assert not np.array_equal(fast.pixels, decode(TURBO, spec, files).pixels), "no scale was used"
        for row, decoded in enumerate(fast.decoded):
            assert mean_difference(fast.pixels[row], exact.pixels[row]) <= 0.5, decoded.id


def test_a_giant_picture_does_not_stay_in_memory():
    spec = Preprocess((32, 32), (32, 32))
    decoder = TurboDecoder(spec, DecodeOptions(mode=DecodeMode.EXACT))
    out = np.empty((2, 32, 32, 3), np.uint8)
    for size in ((4100, 4100), (640, 480)):
        assert len(decoder.decode([Encoded("x", encode(Image.new("RGB", size, (9, 8, 7))))], out).decoded) == 1
    kept = decoder._memory._memory.nbytes
    assert 640 * 480 * 4 <= kept <= 48 << 20
    decoder.close()
    assert decoder._memory._memory.nbytes == 0


def test_the_same_lane_can_meet_every_size_again_and_again():
    """Reused memory and plans never show an earlier picture."""
    spec = SPECS["longest center"]
    files = {
        f"{i}": encode(photo(40 + 37 * i % 300, 30 + 61 * i % 280, seed=i), exif=orientation_exif(1 + i % 8))
        for i in range(40)
    }
    samples = [Encoded(key, data) for key, data in files.items()]
    decoder = TurboDecoder(spec, DecodeOptions())
    out = np.empty((40, *spec.size, 3), np.uint8)
    first = decoder.decode(samples, out).pixels.copy()
    shuffled = samples[::-1]
    again = decoder.decode(shuffled, out).pixels[::-1]
    assert np.array_equal(first, again)
    for row, sample in enumerate(samples):
        alone = decode(TURBO, spec, {sample.id: sample.data})
        assert np.array_equal(alone.pixels[0], first[row])
