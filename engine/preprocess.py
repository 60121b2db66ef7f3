"""How a model wants its pictures: one spec, and the one function that turns it into sizes and offsets.

Every decoder, the calibration, the validation and the PyTorch baselines read this spec. Nothing here
touches a pixel.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from .errors import ModelError


class ResizeMode(StrEnum):
    """How the source is fitted to ``resize``: by its shorter side, exactly, or by its longest side."""

    SHORTER = "shorter"
    SQUASH = "squash"
    LONGEST = "longest"


class Interpolation(StrEnum):
    """Antialiased filter, as Pillow names and defines it."""

    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


class PadPosition(StrEnum):
    """Where a picture smaller than the input sits: centred (timm, open_clip) or top left (SAM)."""

    CENTER = "center"
    CORNER = "corner"


class Exif(StrEnum):
    """Whether the EXIF orientation is applied before anything else."""

    APPLY = "apply"
    IGNORE = "ignore"


class ColorOrder(StrEnum):
    """Channel order that the network wants; pictures are RGB up to the graph's first node."""

    RGB = "rgb"
    BGR = "bgr"


@dataclass(frozen=True, slots=True)
class Preprocess:
    """Preprocessing spec of a model; sizes are (height, width) in pixels, mean and std are of 0..1.

    ``resize`` is the size that ``mode`` fits to, ``size`` the model's input. ``fill`` is the RGB
    level (0..255) of padding. ``color_order``, ``mean`` and ``std`` are applied inside the graph.
    """

    size: tuple[int, int]
    resize: tuple[int, int]
    mode: ResizeMode = ResizeMode.SHORTER
    interpolation: Interpolation = Interpolation.BILINEAR
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    fill: tuple[int, int, int] = (0, 0, 0)
    pad: PadPosition = PadPosition.CENTER
    exif: Exif = Exif.APPLY
    color_order: ColorOrder = ColorOrder.RGB

    def __post_init__(self) -> None:
        if min(*self.size, *self.resize) < 1:
            raise ModelError(f"Preprocessing sizes must be >= 1, got size {self.size}, resize {self.resize}.")
        if min(self.std) <= 0:
            raise ModelError(f"Preprocessing std must be > 0, got {self.std}.")
        if self.mode is ResizeMode.SHORTER and self.resize[0] != self.resize[1]:
            raise ModelError(f"Resize by the shorter side takes one number, got {self.resize}. Use squash instead.")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Preprocess:
        """Spec from its JSON form; raises ModelError on a missing, unknown or bad value."""
        try:
            return cls(
                size=_pair(values["size"]),
                resize=_pair(values["resize"]),
                mode=ResizeMode(values["mode"]),
                interpolation=Interpolation(values["interpolation"]),
                mean=_triple(values["mean"]),
                std=_triple(values["std"]),
                fill=tuple(int(v) for v in _triple(values["fill"])),  # type: ignore[arg-type]
                pad=PadPosition(values["pad"]),
                exif=Exif(values["exif"]),
                color_order=ColorOrder(values["color_order"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"Preprocessing spec is not usable: {error!r} in {values!r}. Export the model again."
            ) from error

    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON form, first 16 hex digits."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Explicit sizes for one picture, in upright pixels.

    The source is resized to ``resized_width`` x ``resized_height``; pixel (x, y) of the input is
    pixel (x + left, y + top) of that, and ``fill`` where there is none.
    """

    resized_width: int
    resized_height: int
    left: int
    top: int
    width: int
    height: int


def geometry_of(spec: Preprocess, width: int, height: int) -> Geometry:
    """Sizes and offsets for an upright source of ``width`` x ``height`` pixels.

    Shorter side: torchvision ``_compute_resized_image_output_size`` (long side floored). Longest
    side: timm ``ResizeKeepRatio(longest=1)`` (rounded), or SAM ``ResizeLongestSide`` (half up) when
    padded at the corner. Offsets: torchvision ``center_crop`` (half to even; padding floored).
    """
    resized_width, resized_height = _resized(spec, width, height)
    input_height, input_width = spec.size
    corner = spec.pad is PadPosition.CORNER
    return Geometry(
        resized_width=resized_width,
        resized_height=resized_height,
        left=_offset(resized_width, input_width, corner),
        top=_offset(resized_height, input_height, corner),
        width=input_width,
        height=input_height,
    )


def _resized(spec: Preprocess, width: int, height: int) -> tuple[int, int]:
    target_height, target_width = spec.resize
    if spec.mode is ResizeMode.SQUASH:
        return target_width, target_height
    if spec.mode is ResizeMode.SHORTER:
        if width <= height:
            return target_width, int(target_width * height / width)
        return int(target_height * width / height), target_height
    if spec.pad is PadPosition.CORNER:
        scale = min(target_height / height, target_width / width)
        return max(1, int(width * scale + 0.5)), max(1, int(height * scale + 0.5))
    ratio = max(height / target_height, width / target_width)
    return max(1, round(width / ratio)), max(1, round(height / ratio))


def _offset(resized: int, wanted: int, corner: bool) -> int:
    if corner:
        return 0
    if resized < wanted:
        return -((wanted - resized) // 2)
    return round((resized - wanted) / 2.0)


def _pair(value: Any) -> tuple[int, int]:
    first, second = value
    return int(first), int(second)


def _triple(value: Any) -> tuple[float, float, float]:
    first, second, third = value
    return float(first), float(second), float(third)
