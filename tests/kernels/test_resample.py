"""The resample kernel, compiled for the host, against its reference and Pillow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import PIL
import pytest
from PIL import Image
from vdali.engine.preprocess import Interpolation, PadPosition, Preprocess, ResizeMode, geometry_of
from vdali.kernels import resample
from vdali.kernels.resample import FILTERS, Picture, is_vertical_first, plan_resample, resample_reference

from .conftest import HostProgram, SanitizerError, address_of

FILL = (11, 22, 33)
ALIKE = int(PIL.__version__.split(".")[0]) >= 13  # older Pillow always filters rows first
ORIENTATION_TAG = 0x0112


@pytest.fixture(scope="session")
def program(host_program: Callable[[str], HostProgram]) -> HostProgram:
    return host_program(resample.SOURCE.read_text())


def random_pixels(random: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Noise, whose overshoot is the largest that a filter can meet."""
    return random.integers(0, 256, (height, width, 3), np.uint8)


def stored(pixels: np.ndarray, padding: int) -> np.ndarray:
    """``pixels`` as bytes with ``padding`` bytes of 0xEE after each row but the last."""
    rows = pixels.reshape(len(pixels), -1)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=0xEE).reshape(-1)
    return padded[: padded.size - padding]


def run(
    program: HostProgram,
    sources: Sequence[np.ndarray],
    pictures: Sequence[Picture],
    size: tuple[int, int],
    interpolation: str,
    backwards: bool = False,
) -> np.ndarray:
    """Batch that the kernels give; every buffer is poisoned first, and no other buffer may change."""
    plan = plan_resample(pictures, *size, interpolation, FILL)
    batch = np.full((len(pictures), *size, 3), 0xCD, np.uint8)
    scratch = np.full(plan.scratch_bytes, 0xAB, np.uint8)
    count = len(sources)
    buffers = [*sources, plan.descriptors, scratch, batch]
    addresses = [address_of(count + number) for number in range(3)]
    origins = [(count, row * resample.PICTURE_DTYPE.itemsize) for row in range(len(pictures))]
    after = program.run(buffers, plan.launches(*addresses), origins, backwards)
    for before, then in zip(sources, after[:count], strict=True):
        np.testing.assert_array_equal(before, then)
    return after[-1]


def with_pillow(pixels: np.ndarray, picture: Picture, size: tuple[int, int], interpolation: str) -> np.ndarray:
    """Upright, resize, crop and fill by Pillow."""
    turns = [None, 0, 3, 1, 5, 4, 6, 2]  # Image.Transpose of each orientation, as in ImageOps.exif_transpose
    image = Image.fromarray(pixels)
    turn = turns[picture.orientation - 1]
    if turn is not None:
        image = image.transpose(Image.Transpose(turn))
    image = image.resize((picture.resized_width, picture.resized_height), Image.Resampling[interpolation.upper()])
    canvas = Image.new("RGB", (size[1], size[0]), FILL)
    canvas.paste(image, (-picture.left, -picture.top))
    return np.asarray(canvas)


def assert_as_pillow(got: np.ndarray, pixels: np.ndarray, picture: Picture, interpolation: str) -> None:
    """Equal in every bit, but for what an older Pillow filters in another order."""
    turned = picture.orientation > 4
    upright = (picture.height, picture.width) if turned else (picture.width, picture.height)
    if ALIKE or not is_vertical_first(*upright, picture.resized_width, picture.resized_height):
        wanted = with_pillow(pixels, picture, got.shape[:2], interpolation)
        np.testing.assert_array_equal(got, wanted, str(picture))


def random_case(
    random: np.random.Generator, number: int, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, Picture]:
    """Pixels, bytes and picture: any orientation, up or down on either axis, windows inside, across and outside."""
    width, height = (int(side) for side in random.integers(1, 61, 2))
    resized_width, resized_height = (int(side) for side in random.integers(1, 61, 2))
    padding = int(random.integers(0, 5))
    pixels = random_pixels(random, width, height)
    picture = Picture(
        pointer=address_of(number),
        width=width,
        height=height,
        pitch=3 * width + padding,
        orientation=int(random.integers(1, 9)),
        resized_width=resized_width,
        resized_height=resized_height,
        left=int(random.integers(-size[1] - 3, resized_width + 4)),
        top=int(random.integers(-size[0] - 3, resized_height + 4)),
    )
    return pixels, stored(pixels, padding), picture


@pytest.mark.parametrize("interpolation", FILTERS)
def test_random_pictures_equal_the_reference_and_pillow_bit_for_bit(program: HostProgram, interpolation: str) -> None:
    random = np.random.default_rng(1)
    for batch in range(6):
        size = (int(random.integers(1, 40)), int(random.integers(1, 40)))
        cases = [random_case(random, number, size) for number in range(16)]
        pixels, sources, pictures = ([case[part] for case in cases] for part in range(3))
        got = run(program, sources, pictures, size, interpolation, backwards=batch % 2 == 1)
        for row, source, picture in zip(got, pixels, pictures, strict=True):
            wanted = resample_reference(source, picture, *size, interpolation, FILL)
            np.testing.assert_array_equal(row, wanted, str(picture))
            assert_as_pillow(row, source, picture, interpolation)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(
    ("source", "resized"),
    [
        ((1, 1), (1, 1)),
        ((1, 1), (37, 23)),
        ((37, 23), (1, 1)),
        ((40, 30), (40, 30)),
        ((40, 30), (40, 15)),
        ((40, 30), (20, 30)),
        ((3, 200), (40, 9)),
        ((200, 3), (9, 40)),
        ((30, 40), (20, 20)),
        ((31, 17), (62, 34)),
        ((255, 121), (32, 32)),
    ],
)
def test_edge_sizes_equal_pillow_in_all_orientations(
    program: HostProgram, source: tuple[int, int], resized: tuple[int, int], interpolation: str
) -> None:
    random = np.random.default_rng(2)
    width, height = source
    sources = [random_pixels(random, width, height) for _ in range(8)]
    pictures = [Picture(address_of(i), width, height, 3 * width, i + 1, *resized, 0, 0) for i in range(8)]
    size = (resized[1], resized[0])
    got = run(program, sources, pictures, size, interpolation)
    for row, pixels, picture in zip(got, sources, pictures, strict=True):
        assert_as_pillow(row, pixels, picture, interpolation)


@pytest.mark.parametrize("interpolation", FILTERS)
def test_real_photos_equal_pillow_at_the_sizes_of_real_models(
    program: HostProgram, shared_data: Path, interpolation: str
) -> None:
    specs = [
        Preprocess((224, 224), (256, 256), interpolation=Interpolation(interpolation)),
        Preprocess((96, 256), (256, 256), ResizeMode.LONGEST, fill=FILL, interpolation=Interpolation(interpolation)),
        Preprocess((128, 128), (128, 128), ResizeMode.LONGEST, pad=PadPosition.CORNER),
        Preprocess((64, 96), (64, 96), ResizeMode.SQUASH),
    ]
    files = sorted((shared_data / "photos").rglob("*.jpg"))[::12]
    assert files
    sources = [np.asarray(Image.open(file).convert("RGB")) for file in files]
    for spec in specs:
        pictures = []
        for number, pixels in enumerate(sources):
            height, width = pixels.shape[:2]
            orientation = (1, 6, 3, 8)[number % 4]
            upright = (height, width) if orientation in (6, 8) else (width, height)
            place = geometry_of(spec, *upright)
            pictures.append(
                Picture(address_of(number), width, height, 3 * width, orientation, place.resized_width,
                        place.resized_height, place.left, place.top)
            )  # fmt: skip
        got = run(program, sources, pictures, spec.size, interpolation)
        for row, pixels, picture in zip(got, sources, pictures, strict=True):
            assert_as_pillow(row, pixels, picture, interpolation)


def test_orientations_are_those_of_pillows_exif_transpose() -> None:
    from PIL import ImageOps

    pixels = random_pixels(np.random.default_rng(3), 5, 7)
    for orientation in range(1, 9):
        image = Image.fromarray(pixels)
        image.getexif()[ORIENTATION_TAG] = orientation
        upright = np.asarray(ImageOps.exif_transpose(image))
        height, width = upright.shape[:2]
        picture = Picture(1, 5, 7, 15, orientation, width, height, 0, 0)
        np.testing.assert_array_equal(resample_reference(pixels, picture, height, width, "bilinear", FILL), upright)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("row >= height)", "row > height)"),
        ("last > source ? source", "last > source ? source + 1"),
    ],
)
def test_an_index_that_is_off_by_one_is_stopped_by_the_sanitizer(
    host_program: Callable[[str], HostProgram], right: str, wrong: str
) -> None:
    source = resample.SOURCE.read_text()
    assert source.count(right) == 1
    program = host_program(source.replace(right, wrong))
    pixels = random_pixels(np.random.default_rng(4), 32, 32)
    picture = Picture(address_of(0), 32, 32, 96, 1, 61, 61, 0, 0)
    with pytest.raises(SanitizerError, match="AddressSanitizer"):
        run(program, [pixels], [picture], (61, 61), "bilinear")


def test_an_empty_batch_launches_nothing() -> None:
    plan = plan_resample([], 8, 8, "bilinear")
    assert plan.scratch_bytes == 0
    assert plan.launches(1, 2, 3) == []


@pytest.mark.parametrize(
    "change",
    [{"orientation": 0}, {"orientation": 9}, {"width": 0}, {"resized_height": 0}, {"pitch": 29}, {"left": 1 << 24}],
)
def test_a_picture_that_makes_no_sense_is_refused(change: dict[str, int]) -> None:
    values = {
        "pointer": 1, "width": 10, "height": 10, "pitch": 30, "orientation": 1,
        "resized_width": 5, "resized_height": 5, "left": 0, "top": 0,
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"got"):
        Picture(**{**values, **change})


@pytest.mark.parametrize(
    ("size", "interpolation", "fill"),
    [((0, 8), "bilinear", (0, 0, 0)), ((8, 8), "nearest", (0, 0, 0)), ((8, 8), "bilinear", (0, 0, 256))],
)
def test_a_batch_that_makes_no_sense_is_refused(
    size: tuple[int, int], interpolation: str, fill: tuple[int, int, int]
) -> None:
    with pytest.raises(ValueError, match=r"got"):
        plan_resample([], *size, interpolation, fill)


def test_planning_costs_little_of_what_decoding_costs() -> None:
    pictures = [Picture(1 << 40, 500 + i, 375, 1800, 1 + i % 8, 341, 256, 58, 16) for i in range(64)]
    best = min(_planning_s(pictures) for _ in range(5))
    assert best / 64 < 100e-6  # a decode takes 2,000


def _planning_s(pictures: Sequence[Picture]) -> float:
    start = time.thread_time()
    plan_resample(pictures, 224, 224, "bicubic").launches(1, 2, 3)
    return time.thread_time() - start
