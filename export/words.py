"""Export options from words that a user typed."""

from __future__ import annotations

import re
from pathlib import Path

from ..engine.errors import UsageError
from ..engine.preprocess import ColorOrder, Exif, Interpolation, PadPosition, ResizeMode
from ..engine.spec import Task
from ..engine.words import word
from .options import ExportOptions


def options_from_words(
    *,
    task: str | None,
    weights: str,
    seed: int,
    resize: str | None,
    crop: str | None,
    mode: str | None,
    interpolation: str | None,
    mean: str | None,
    std: str | None,
    fill: str | None,
    pad: str | None,
    exif: str | None,
    color_order: str | None,
    output: str | None,
    classes: Path | None,
    label_offset: int,
    normalize: bool,
) -> ExportOptions:
    """Options of an export; raises UsageError that names the option and what it takes."""
    level = fill and _triple(fill, "fill")
    return ExportOptions(
        task=word(Task, task, "task") if task else None,
        weights=weights,
        seed=seed,
        resize=_size(resize, "resize") if resize else None,
        crop=_size(crop, "crop") if crop else None,
        mode=word(ResizeMode, mode, "mode") if mode else None,
        interpolation=word(Interpolation, interpolation, "interpolation") if interpolation else None,
        mean=_triple(mean, "mean") if mean else None,
        std=_triple(std, "std") if std else None,
        fill=(round(level[0]), round(level[1]), round(level[2])) if level else None,
        pad=word(PadPosition, pad, "pad") if pad else None,
        exif=word(Exif, exif, "exif") if exif else None,
        color_order=word(ColorOrder, color_order, "color-order") if color_order else None,
        output=output,
        classes=classes,
        label_offset=label_offset,
        normalize=normalize,
    )


def _size(text: str, option: str) -> tuple[int, int]:
    """(height, width) from ``N`` or ``HxW``."""
    match = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", text)
    if match is None or not int(match[1]) or not int(match[2] or 1):
        raise UsageError(f"--{option} takes N or HxW in pixels, such as 224 or 480x640; got '{text}'.")
    return int(match[1]), int(match[2] or match[1])


def _triple(text: str, option: str) -> tuple[float, float, float]:
    """Three numbers from ``A,B,C``, or the same one three times from ``A``."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) == 1:
        values *= 3
    if len(values) != 3:
        raise UsageError(f"--{option} takes three numbers, such as 0.485,0.456,0.406; got '{text}'.")
    return values[0], values[1], values[2]
