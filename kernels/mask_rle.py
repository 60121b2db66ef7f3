"""Masks as COCO run lengths, so that little leaves the GPU.

``MaskRlePlan`` packs the arguments of the kernels in ``mask_rle.cu`` and reads what they leave;
``mask_rle_reference`` is the slow function that they must equal. COCO counts a mask column after
column; its counts are of zeros and ones in turn and begin with zeros (cocoapi, common/maskApi.c).
Nothing here needs a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .launch import Launch, blocks_for

SOURCE = Path(__file__).with_name("mask_rle.cu")
OPTIONS: tuple[str, ...] = ()

_BLOCK = 128
_LIMIT = (1 << 31) - _BLOCK  # thread and pixel numbers are int32

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of equal values of one mask [height, width], in column order.

    ``positions`` (int32 [m]) is where each run begins, at column * height + row; ``values`` (uint8 [m])
    is its class id, or 0 and 1 of a binary mask.
    """

    height: int
    width: int
    positions: NDArray[np.int32]
    values: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class MaskRlePlan:
    """Buffers and launches for ``count`` masks, uint8 [count, height, width].

    ``binary`` counts every non-zero level as 1. The runs of all masks together must be at most
    ``capacity`` to fit; five bytes a run, so more than count * height * width / 5 runs are better sent as masks.
    """

    count: int
    height: int
    width: int
    binary: bool
    capacity: int

    def __post_init__(self) -> None:
        if min(self.count, self.height, self.width, self.capacity) < 1:
            raise ValueError(f"Counts and sizes must be at least 1, got {self}.")
        if max(self.count * self.width, self.height * self.width, self.capacity) > _LIMIT:
            raise ValueError(f"Columns of a batch, pixels of a mask and runs must be under 2**31, got {self}.")

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch, aligned to 4; it holds nothing between batches."""
        return 2 * 4 * self.count * self.width

    def launches(self, masks: int, scratch: int, totals: int, positions: int, values: int) -> list[Launch]:
        """Launches, in order and on one stream; the arguments are device addresses.

        Out come ``totals`` int32 [count], ``positions`` int32 [capacity] and ``values`` uint8
        [capacity]; copy ``totals`` to the host first, then as many runs as they add up to.
        """
        offsets = scratch + 4 * self.count * self.width
        count, height, width = np.int32(self.count), np.int32(self.height), np.int32(self.width)
        binary, capacity = np.int32(self.binary), np.int32(self.capacity)
        columns = (blocks_for(self.count * self.width, _BLOCK), 1, 1)
        block = (_BLOCK, 1, 1)
        return [
            Launch("mask_rle_count", columns, block, (masks, scratch, count, height, width, binary)),
            Launch(
                "mask_rle_offsets",
                (blocks_for(self.count, _BLOCK), 1, 1),
                block,
                (scratch, offsets, totals, count, width),
            ),
            Launch(
                "mask_rle_write",
                columns,
                block,
                (masks, offsets, totals, positions, values, count, height, width, binary, capacity),
            ),
        ]

    def split(self, totals: NDArray[np.int32], positions: NDArray[np.int32], values: NDArray[np.uint8]) -> list[Runs]:
        """Runs of each mask, views of ``positions`` and ``values``.

        Raises ValueError where the totals exceed ``capacity`` or the arrays: runs are missing then.
        """
        ends = np.cumsum(totals, dtype=np.int64)
        if ends[-1] > min(self.capacity, len(positions), len(values)):
            raise ValueError(
                f"The masks have {ends[-1]} runs and there is room for {self.capacity}. Use a larger capacity."
            )
        bounds = zip(ends - totals, ends, strict=True)
        return [Runs(self.height, self.width, positions[start:end], values[start:end]) for start, end in bounds]


def mask_from_runs(runs: Runs) -> NDArray[np.uint8]:
    """Mask [height, width] of the runs' values."""
    lengths = np.diff(runs.positions, append=runs.height * runs.width)
    return np.repeat(runs.values, lengths).reshape(runs.width, runs.height).T


def coco_counts(runs: Runs, class_id: int = 1) -> Counts:
    """COCO counts of the pixels that have ``class_id`` (of a binary mask: 1)."""
    inside = runs.values == class_id
    changes = np.diff(inside, prepend=False)
    edges = runs.positions[changes].astype(np.int64)
    counts: Counts = np.diff(edges, prepend=0, append=runs.height * runs.width)
    return counts


def mask_from_counts(counts: Counts, height: int, width: int) -> NDArray[np.uint8]:
    """Binary mask [height, width] of COCO counts; raises ValueError where they do not add up to its pixels."""
    if int(np.sum(counts)) != height * width or np.min(counts, initial=0) < 0:
        raise ValueError(f"Counts of a {width} x {height} mask must add up to {height * width}, got {np.sum(counts)}.")
    ones = np.arange(len(counts)) % 2
    return np.repeat(ones.astype(np.uint8), counts).reshape(width, height).T


def compress_counts(counts: Counts) -> bytes:
    """COCO's string of counts: from the fourth on less the count two before, in base 32, low digits first.

    A character is 48 plus five bits, plus 32 where more follow; the highest bit of the last one is the sign.
    """
    numbers = np.asarray(counts, np.int64).copy()
    numbers[3:] -= counts[1:-2]
    shifts = np.arange(0, 35, 5)
    digits = (numbers[:, None] >> shifts) & 31
    rest = numbers[:, None] >> (shifts + 5)
    last = rest == np.where(digits & 16, -1, 0)
    kept = np.cumsum(last, axis=1) - last == 0
    characters = digits + 48 + 32 * ~last
    return bytes(characters[kept].astype(np.uint8))


def decompress_counts(text: bytes) -> Counts:
    """COCO counts of a string that ``compress_counts`` or pycocotools made; raises ValueError on any other."""
    characters = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    if len(text) == 0 or characters.min() < 0 or characters.max() > 63 or characters[-1] & 32:
        raise ValueError(f"Not a COCO run length string: {text[:40]!r}.")
    last = (characters & 32) == 0
    number = np.cumsum(last) - last
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    place = np.arange(len(characters)) - starts[number]
    if place.max() > 6:
        raise ValueError(f"A COCO count has at most 7 characters: {text[:40]!r}.")
    numbers = np.add.reduceat((characters & 31) << (5 * place), starts)
    numbers -= (characters[last] >> 4 & 1) << (5 * (place[last] + 1))
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    return numbers


def mask_rle_reference(mask: NDArray[np.uint8], binary: bool) -> Runs:
    """What the kernels must give for one mask [height, width]."""
    height, width = mask.shape
    positions: list[int] = []
    values: list[int] = []
    before = -1
    for column in range(width):
        for row in range(height):
            value = int(mask[row, column] != 0) if binary else int(mask[row, column])
            if value != before:
                positions.append(column * height + row)
                values.append(value)
            before = value
    return Runs(height, width, np.array(positions, np.int32), np.array(values, np.uint8))
