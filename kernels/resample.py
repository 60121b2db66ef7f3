"""Crop and antialiased resize of pictures of any size into one uint8 batch, bit for bit as Pillow >= 13 does it.

``plan_resample`` packs the arguments of the kernels in ``resample.cu``; ``resample_reference`` is the slow
function that they must equal. Nothing here needs a GPU.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .launch import Launch, blocks_for

SOURCE = Path(__file__).with_name("resample.cu")
OPTIONS = ("--fmad=false",)
"""A contracted multiply-add rounds weights differently from Pillow's C."""

FILTERS = {"bilinear": (0, 1.0), "bicubic": (1, 2.0), "lanczos": (2, 3.0)}
"""Number of a filter in ``resample.cu`` and its support in pixels, by Pillow's name."""

PICTURE_DTYPE = np.dtype(
    [(name, np.int64) for name in ("origin", "step_x", "step_y", "taps_x", "taps_y", "middle")]
    + [(name, np.int32) for name in ("width", "height", "resized_width", "resized_height", "left", "top")]
    + [(name, np.int32) for name in ("shown_x", "shown_y", "shown_width", "shown_height")]
    + [(name, np.int32) for name in ("middle_start", "middle_width", "middle_height", "vertical_first")]
)
"""``struct Picture`` of ``resample.cu``."""

_PRECISION_BITS = 32 - 8 - 2
_LIMIT = 1 << 24  # sizes and offsets; Pillow holds them in float32
_MOST_PICTURES = 65535  # of a CUDA grid's y and z
_MOST_SIZE = 1 << 15  # of a batch's pictures; no model comes near
_TAPS_BLOCK = 128
_PASS_BLOCK = (32, 8, 1)
_MOST_LINE_BLOCKS = 64  # a small picture beside a large one ends few idle blocks; each thread strides over lines

_ORIENTATIONS = np.array(
    [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 0], [1, 0, 1], [1, 1, 1], [1, 1, 0]], bool
)
"""By EXIF orientation 1 to 8 (tag 0x0112): stored picture has axes swapped, columns mirrored, rows flipped."""

_Ints = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Picture:
    """One decoded picture on the device, and where it goes.

    ``pointer`` is the address of the first stored pixel (uint8 RGB), ``width`` and ``height`` are the
    stored size in pixels, ``pitch`` the bytes from one stored row to the next. ``orientation`` is
    EXIF's. The upright picture is resized to ``resized_width`` x ``resized_height``; pixel (x, y) of
    the batch is pixel (x + left, y + top) of that, and the fill colour where there is none.
    """

    pointer: int
    width: int
    height: int
    pitch: int
    orientation: int
    resized_width: int
    resized_height: int
    left: int
    top: int

    def __post_init__(self) -> None:
        if not 1 <= self.orientation <= 8:
            raise ValueError(f"EXIF orientation is 1 to 8, got {self.orientation}.")
        if not all(1 <= size < _LIMIT for size in (self.width, self.height, self.resized_width, self.resized_height)):
            raise ValueError(f"Sizes must be 1 to {_LIMIT - 1} pixels, got {self}.")
        if max(abs(self.left), abs(self.top)) >= _LIMIT:
            raise ValueError(f"Offsets must be under {_LIMIT} pixels, got {self}.")
        if self.pitch < 3 * self.width:
            raise ValueError(f"A row of {self.width} RGB pixels takes {3 * self.width} bytes, got pitch {self.pitch}.")


_FIELDS = operator.attrgetter(*Picture.__slots__)


@dataclass(frozen=True, slots=True)
class ResamplePlan:
    """What to upload, how much scratch to have, and what to launch, for one batch.

    ``descriptors`` [n] of PICTURE_DTYPE go to the device as they are; scratch is ``scratch_bytes``,
    aligned to 4 bytes, and holds nothing between batches; the batch is uint8 [n, height, width, 3].
    """

    descriptors: NDArray[np.void]
    scratch_bytes: int
    height: int
    width: int
    filter_number: int
    fill: tuple[int, int, int]

    def launches(self, descriptors: int, scratch: int, batch: int) -> list[Launch]:
        """Launches, in order and on one stream; the arguments are the device addresses of the three buffers."""
        pictures = self.descriptors
        count = len(pictures)
        if count == 0:
            return []
        turned = np.abs(pictures["step_x"]) != 3
        lanes = int(np.where(turned, pictures["middle_height"], pictures["middle_width"]).max())
        lines = int(np.where(turned, pictures["middle_width"], pictures["middle_height"]).max())
        taps = int((pictures["shown_width"] + pictures["shown_height"]).max())
        block_x, block_y, _ = _PASS_BLOCK
        line_blocks = min(blocks_for(lines, block_y), _MOST_LINE_BLOCKS)
        red, green, blue = self.fill
        size = (np.int32(self.height), np.int32(self.width), np.int32(red | green << 8 | blue << 16))
        return [
            Launch(
                "resample_taps",
                (blocks_for(taps, _TAPS_BLOCK), count, 1),
                (_TAPS_BLOCK, 1, 1),
                (descriptors, scratch, np.int32(self.filter_number)),
            ),
            Launch(
                "resample_first_pass",
                (blocks_for(lanes, block_x), line_blocks, count),
                _PASS_BLOCK,
                (descriptors, scratch),
            ),
            Launch(
                "resample_second_pass",
                (blocks_for(self.width, block_x), blocks_for(self.height, block_y), count),
                _PASS_BLOCK,
                (descriptors, scratch, batch, *size),
            ),
        ]


def plan_resample(
    pictures: Sequence[Picture], height: int, width: int, interpolation: str, fill: tuple[int, int, int] = (0, 0, 0)
) -> ResamplePlan:
    """Plan for ``pictures`` into uint8 [n, height, width, 3]; ``fill`` is RGB, 0..255.

    Raises ValueError on an unknown interpolation or on sizes that the kernels cannot take.
    """
    if interpolation not in FILTERS:
        raise ValueError(f"Interpolation must be one of {', '.join(FILTERS)}, got {interpolation!r}.")
    if not (0 < height <= _MOST_SIZE and 0 < width <= _MOST_SIZE):
        raise ValueError(f"A batch's pictures have sides of 1 to {_MOST_SIZE} pixels, got {width} x {height}.")
    if not all(0 <= level <= 255 for level in fill):
        raise ValueError(f"Fill levels are 0 to 255, got {fill}.")
    if len(pictures) > _MOST_PICTURES:
        raise ValueError(f"One launch takes {_MOST_PICTURES} pictures, got {len(pictures)}. Split the batch.")
    number, support = FILTERS[interpolation]
    rows = _upright_rows(pictures)
    _place_windows(rows, height, width, support)
    scratch_bytes = _place_scratch(rows, support)
    return ResamplePlan(rows, scratch_bytes, height, width, number, fill)


def _upright_rows(pictures: Sequence[Picture]) -> NDArray[np.void]:
    """Descriptors with addresses and sizes: an orientation is nothing but an origin and two signed steps."""
    fields = np.array([_FIELDS(picture) for picture in pictures], np.int64).reshape(-1, 9)
    pointer, width, height, pitch, orientation, resized_width, resized_height, left, top = fields.T
    turned, mirrored, flipped = _ORIENTATIONS[orientation].T
    right, down = np.where(mirrored, -3, 3), np.where(flipped, -pitch, pitch)
    rows = np.zeros(len(pictures), PICTURE_DTYPE)
    rows["origin"] = pointer + mirrored * (width - 1) * 3 + flipped * (height - 1) * pitch
    rows["step_x"], rows["step_y"] = np.where(turned, down, right), np.where(turned, right, down)
    rows["width"], rows["height"] = np.where(turned, height, width), np.where(turned, width, height)
    rows["resized_width"], rows["resized_height"] = resized_width, resized_height
    rows["left"], rows["top"] = left, top
    return rows


def _place_windows(rows: NDArray[np.void], height: int, width: int, support: float) -> None:
    """Say which part of each resized picture shows, and what of the source the second pass then needs."""
    for axis, offset, size in (("x", "left", width), ("y", "top", height)):
        resized = rows["resized_width" if axis == "x" else "resized_height"]
        start = np.clip(rows[offset], 0, resized)
        rows[f"shown_{axis}"] = start
        rows["shown_width" if axis == "x" else "shown_height"] = np.clip(rows[offset] + size, 0, resized) - start
    hidden = (rows["shown_width"] == 0) | (rows["shown_height"] == 0)
    rows["shown_width"][hidden] = rows["shown_height"][hidden] = 0
    vertical_first = is_vertical_first(rows["width"], rows["height"], rows["resized_width"], rows["resized_height"])
    columns = _needed(rows["width"], rows["resized_width"], rows["shown_x"], rows["shown_width"], support)
    lines = _needed(rows["height"], rows["resized_height"], rows["shown_y"], rows["shown_height"], support)
    rows["vertical_first"] = vertical_first
    rows["middle_start"] = np.where(vertical_first, columns[0], lines[0])
    rows["middle_width"] = np.where(vertical_first, columns[1], rows["shown_width"])
    rows["middle_height"] = np.where(vertical_first, rows["shown_height"], lines[1])


def _place_scratch(rows: NDArray[np.void], support: float) -> int:
    """Give each picture its room in scratch: taps of all (ints), then the middle pictures. Returns all bytes."""
    ints_x = (2 + _most_taps(rows["width"], rows["resized_width"], support)) * rows["shown_width"]
    ints_y = (2 + _most_taps(rows["height"], rows["resized_height"], support)) * rows["shown_height"]
    ends = np.cumsum(ints_x + ints_y)
    rows["taps_x"] = ends - ints_x - ints_y
    rows["taps_y"] = ends - ints_y
    taps_bytes = 4 * int(ends[-1]) if len(rows) else 0
    sizes = rows["middle_width"].astype(np.int64) * rows["middle_height"] * 3
    rows["middle"] = taps_bytes + np.cumsum(sizes) - sizes
    return taps_bytes + int(sizes.sum())


def is_vertical_first(width: Any, height: Any, resized_width: Any, resized_height: Any) -> Any:
    """Whether Pillow >= 13 filters columns first: where rows shrink by more than twice what columns do.

    Sizes are numbers or arrays. Pillow 12.0 always filters rows first; the 8-bit rounding between the
    passes then makes a mean difference of up to 0.75 level on noise.
    """
    return (height > resized_height) & (height - resized_height > 2 * (width - resized_width))


def _needed(source: _Ints, resized: _Ints, start: _Ints, count: _Ints, support: float) -> tuple[_Ints, _Ints]:
    """First source position that outputs ``start`` .. ``start + count`` weigh, and how many; as in ``write_taps``."""
    scale = source / resized
    reach = support * np.maximum(scale, 1.0)
    first = np.maximum(((start + 0.5) * scale - reach + 0.5).astype(np.int64), 0)
    last = np.minimum(((start + count - 1 + 0.5) * scale + reach + 0.5).astype(np.int64), source)
    return first, np.where(count > 0, last - first, 0)


def _most_taps(source: _Ints, resized: _Ints, support: float) -> _Ints:
    return np.ceil(support * np.maximum(source / resized, 1.0)).astype(np.int64) * 2 + 1


def resample_reference(
    pixels: NDArray[np.uint8], picture: Picture, height: int, width: int, interpolation: str, fill: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """What the kernels must give for stored ``pixels`` [picture.height, picture.width, 3]: [height, width, 3]."""
    turned, mirrored, flipped = _ORIENTATIONS[picture.orientation]
    upright = pixels[:: -1 if flipped else 1, :: -1 if mirrored else 1]
    upright = upright.transpose(1, 0, 2) if turned else upright
    rows, columns = upright.shape[:2]
    across = _weights(columns, picture.resized_width, interpolation)
    down = _weights(rows, picture.resized_height, interpolation)
    if is_vertical_first(columns, rows, picture.resized_width, picture.resized_height):
        resized = _weigh(across, _weigh(down, upright).transpose(1, 0, 2)).transpose(1, 0, 2)
    else:
        resized = _weigh(down, _weigh(across, upright.transpose(1, 0, 2)).transpose(1, 0, 2))
    window = np.empty((height, width, 3), np.uint8)
    for y in range(height):
        for x in range(width):
            from_y, from_x = y + picture.top, x + picture.left
            inside = 0 <= from_y < picture.resized_height and 0 <= from_x < picture.resized_width
            window[y, x] = resized[from_y, from_x] if inside else fill
    return window


def _weigh(weights: NDArray[np.float64], pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Filter the first axis of ``pixels``; float64 holds the sums, which are whole and under 2**31, exactly."""
    sums = np.tensordot(weights, pixels.astype(np.float64), axes=1) + (1 << (_PRECISION_BITS - 1))
    levels = np.floor(sums / (1 << _PRECISION_BITS))
    return np.clip(levels, 0, 255).astype(np.uint8)


def _weights(source: int, resized: int, interpolation: str) -> NDArray[np.float64]:
    """Whole weights [resized, source], scaled by 2**22: Pillow's precompute_coeffs and normalize_coeffs_8bpc."""
    support = FILTERS[interpolation][1]
    scale = source / resized
    stretch = max(scale, 1.0)
    weights = np.zeros((resized, source))
    for output in range(resized):
        center = (output + 0.5) * scale
        first = max(int(center - support * stretch + 0.5), 0)
        last = min(int(center + support * stretch + 0.5), source)
        values = [_filter_at(interpolation, (at - center + 0.5) * (1.0 / stretch)) for at in range(first, last)]
        total = functools.reduce(operator.add, values, 0.0)  # sum() compensates from Python 3.12 on, C does not
        for at, value in zip(range(first, last), values, strict=True):
            scaled = (value / total if total else value) * (1 << _PRECISION_BITS)
            weights[output, at] = int(scaled - 0.5 if scaled < 0 else scaled + 0.5)
    return weights


def _filter_at(interpolation: str, x: float) -> float:
    if interpolation == "lanczos":
        return _sinc(x) * _sinc(x / 3) if -3.0 <= x < 3.0 else 0.0
    x = abs(x)
    if interpolation == "bilinear":
        return max(1.0 - x, 0.0)
    if x < 1.0:
        return ((-0.5 + 2.0) * x - (-0.5 + 3.0)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2.0 else 0.0


def _sinc(x: float) -> float:
    return math.sin(x * math.pi) / (x * math.pi) if x else 1.0
