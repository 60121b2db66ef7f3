"""The run length kernel, compiled for the host, against its reference and COCO's own definition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from vdali.kernels import mask_rle
from vdali.kernels.mask_rle import (
    MaskRlePlan,
    Runs,
    coco_counts,
    compress_counts,
    decompress_counts,
    mask_from_counts,
    mask_from_runs,
    mask_rle_reference,
)

from .conftest import HostProgram, SanitizerError, address_of


@pytest.fixture(scope="session")
def program(host_program: Callable[[str], HostProgram]) -> HostProgram:
    return host_program(mask_rle.SOURCE.read_text())


def run(program: HostProgram, masks: np.ndarray, binary: bool, capacity: int, backwards: bool = False) -> list[Runs]:
    """Runs that the kernels give; every buffer is poisoned first."""
    plan = MaskRlePlan(*masks.shape, binary, capacity)
    buffers = [
        masks,
        np.full(plan.scratch_bytes, 0xAB, np.uint8),
        np.full(plan.count, -7, np.int32),
        np.full(capacity, -7, np.int32),
        np.full(capacity, 0xAB, np.uint8),
    ]
    after = program.run(buffers, plan.launches(*(address_of(number) for number in range(5))), (), backwards)
    np.testing.assert_array_equal(after[0], masks)
    return plan.split(*after[2:])


def blobs(random: np.random.Generator, count: int, height: int, width: int, classes: int) -> np.ndarray:
    """Masks with areas of several classes: coarse noise, enlarged."""
    coarse = random.integers(0, classes, (count, -(-height // 3), -(-width // 4)), np.uint8)
    return np.ascontiguousarray(coarse.repeat(3, axis=1).repeat(4, axis=2)[:, :height, :width])


def naive_counts(mask: np.ndarray) -> list[int]:
    """COCO's counts of a mask of zeros and ones, pixel by pixel as in its rleEncode."""
    counts, before, run_length = [], 0, 0
    for value in mask.T.ravel():
        if value != before:
            counts.append(run_length)
            run_length, before = 0, value
        run_length += 1
    return [*counts, run_length]


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 50), (3, 50, 1), (5, 33, 47), (130, 4, 3), (2, 64, 129)])
def test_runs_equal_the_reference(program: HostProgram, shape: tuple[int, int, int], binary: bool) -> None:
    random = np.random.default_rng(1)
    for masks in (
        blobs(random, *shape, classes=3),
        random.integers(0, 256, shape, np.uint8),
        np.zeros(shape, np.uint8),
    ):
        got = run(program, masks, binary, masks.size, backwards=binary)
        assert len(got) == len(masks)
        for mask, runs in zip(masks, got, strict=True):
            wanted = mask_rle_reference(mask, binary)
            np.testing.assert_array_equal(runs.positions, wanted.positions)
            np.testing.assert_array_equal(runs.values, wanted.values)
            np.testing.assert_array_equal(mask_from_runs(runs), mask != 0 if binary else mask)


def test_counts_of_every_class_equal_cocos_definition(program: HostProgram) -> None:
    masks = blobs(np.random.default_rng(2), 4, 31, 26, classes=5)
    masks[0] = 1
    for mask, runs in zip(masks, run(program, masks, False, masks.size), strict=True):
        for class_id in range(6):
            counts = coco_counts(runs, class_id)
            assert counts.tolist() == naive_counts(mask == class_id)
            np.testing.assert_array_equal(mask_from_counts(counts, 31, 26), mask == class_id)


def test_counts_of_a_binary_mask_are_those_of_its_ones(program: HostProgram) -> None:
    masks = blobs(np.random.default_rng(3), 3, 20, 30, classes=2) * np.uint8(255)
    for mask, runs in zip(masks, run(program, masks, True, masks.size), strict=True):
        assert coco_counts(runs).tolist() == naive_counts(mask != 0)


def test_a_real_mask_shrinks_twentyfold(program: HostProgram, shared_data: Path) -> None:
    file = next(path for path in sorted((shared_data / "masks").iterdir()) if "mask" in path.name)
    mask = np.asarray(Image.open(file))
    assert mask.ndim == 2
    (runs,) = run(program, mask[None], False, mask.size)
    np.testing.assert_array_equal(mask_from_runs(runs), mask)
    assert 5 * len(runs.positions) < mask.size / 20


def test_too_small_a_capacity_is_said_and_nothing_is_written_past_it(program: HostProgram) -> None:
    masks = blobs(np.random.default_rng(4), 3, 20, 30, classes=4)
    needed = sum(len(mask_rle_reference(mask, False).values) for mask in masks)
    assert len(run(program, masks, False, needed)) == 3
    with pytest.raises(ValueError, match=rf"{needed} runs and there is room for {needed - 1}"):
        run(program, masks, False, needed - 1)


def test_an_index_that_is_off_by_one_is_stopped_by_the_sanitizer(host_program: Callable[[str], HostProgram]) -> None:
    source = mask_rle.SOURCE.read_text()
    assert source.count("row < height") == 2
    program = host_program(source.replace("row < height", "row <= height"))
    with pytest.raises(SanitizerError, match="AddressSanitizer"):
        run(program, np.zeros((2, 9, 9), np.uint8), False, 162)


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ([0], b"0"),
        ([15], b"?"),
        ([16], b"`0"),
        ([31], b"o0"),
        ([32], b"P1"),
        ([5, 9, 5, 9], b"5950"),
        ([9, 1, 9, 0], b"919O"),
    ],
)
def test_strings_are_cocos(counts: list[int], text: bytes) -> None:
    assert compress_counts(np.array(counts)) == text
    assert decompress_counts(text).tolist() == counts


def test_random_counts_survive_their_string() -> None:
    random = np.random.default_rng(5)
    for length in (1, 2, 3, 4, 5, 50):
        for top in (1, 20, 70_000, 2**31 - 1):
            counts = random.integers(0, top, length)
            assert decompress_counts(compress_counts(counts)).tolist() == counts.tolist()


@pytest.mark.parametrize("text", [b"", b" ", b"p", b"P", b"oooooooo0"])
def test_a_string_that_is_not_cocos_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="COCO"):
        decompress_counts(text)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_strings_and_masks_equal_pycocotools() -> None:
    coco = pytest.importorskip("pycocotools.mask", reason="pycocotools is not installed")
    random = np.random.default_rng(6)
    for _ in range(50):
        height, width = (int(side) for side in random.integers(1, 90, 2))
        mask = blobs(random, 1, height, width, classes=2)[0]
        theirs = coco.encode(np.asfortranarray(mask))
        assert compress_counts(coco_counts(mask_rle_reference(mask, True))) == theirs["counts"]
        np.testing.assert_array_equal(
            mask_from_counts(decompress_counts(theirs["counts"]), height, width), coco.decode(theirs)
        )


@pytest.mark.parametrize("counts", [[1, 2], [], [-1, 7]])
def test_counts_that_are_no_masks_are_refused(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="must add up to 6"):
        mask_from_counts(np.array(counts, np.int64), 2, 3)


@pytest.mark.parametrize("sizes", [(0, 4, 4, 4), (4, 0, 4, 4), (4, 4, 4, 0), (1, 1 << 16, 1 << 15, 4)])
def test_sizes_that_the_kernels_cannot_take_are_refused(sizes: tuple[int, int, int, int]) -> None:
    count, height, width, capacity = sizes
    with pytest.raises(ValueError, match="got"):
        MaskRlePlan(count, height, width, False, capacity)
