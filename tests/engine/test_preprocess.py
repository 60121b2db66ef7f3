"""Sizes and offsets against torchvision, timm and SAM; the spec's JSON form and what it refuses."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from timm.data.transforms import ResizeKeepRatio, center_crop_or_pad
from torchvision.transforms import functional
from vdali.engine.errors import ModelError
from vdali.engine.preprocess import (
    ColorOrder,
    Exif,
    Geometry,
    Interpolation,
    PadPosition,
    Preprocess,
    ResizeMode,
    geometry_of,
)


def sizes(count: int) -> list[tuple[int, int]]:
    rng = random.Random(7)
    known = [(1601, 1203), (640, 427), (1024, 683), (224, 224), (256, 256), (1, 1), (1, 300), (300, 1)]
    return known + [(rng.randint(1, 4000), rng.randint(1, 4000)) for _ in range(count - len(known))]


def coordinates(width: int, height: int) -> torch.Tensor:
    """Picture [1, height, width] of 65536 * y + x + 1: a crop tells where it was, 0 is padding."""
    rows = torch.arange(height, dtype=torch.int32) * 65536
    return (rows[:, None] + torch.arange(1, width + 1, dtype=torch.int32))[None]


def offset_seen(cropped: torch.Tensor) -> tuple[int, int]:
    """(left, top) of a crop of ``coordinates``, padded with 0."""
    values = cropped[0].numpy()
    y, x = np.unravel_index(np.argmax(values > 0), values.shape)
    return (int(values[y, x]) - 1) % 65536 - int(x), (int(values[y, x]) - 1) // 65536 - int(y)


@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (146, 128), (200, 224)])
def test_shorter_side_and_centre_crop_are_those_of_torchvision_for_200_sizes(resize, crop):
    spec = Preprocess((crop, crop), (resize, resize))
    for width, height in sizes(200):
        if max(width, height) > 10 * min(width, height):
            continue
        resized = functional._compute_resized_output_size((height, width), [resize])
        found = geometry_of(spec, width, height)
        assert [found.resized_height, found.resized_width] == resized, (width, height)
        wanted = functional.center_crop(coordinates(resized[1], resized[0]), [crop, crop])
        assert (found.left, found.top) == offset_seen(wanted), (width, height)


@pytest.mark.parametrize("target", [(224, 224), (192, 256)])
def test_longest_side_and_padding_are_those_of_timm_and_open_clip(target):
    spec = Preprocess(target, target, ResizeMode.LONGEST)
    for width, height in sizes(200):
        if max(width, height) > 150 * min(width, height):
            continue
        resized = ResizeKeepRatio.get_params(torch.empty(1, 1, 1).expand(3, height, width), target, 1.0)
        found = geometry_of(spec, width, height)
        assert [found.resized_height, found.resized_width] == resized, (width, height)
        wanted = center_crop_or_pad(coordinates(resized[1], resized[0]), list(target))
        assert (found.left, found.top) == offset_seen(wanted), (width, height)


def test_longest_side_at_the_corner_is_the_rule_of_sam():
    spec = Preprocess((1024, 1024), (1024, 1024), ResizeMode.LONGEST, pad=PadPosition.CORNER)
    for width, height in sizes(200):
        scale = 1024 * 1.0 / max(height, width)
        wanted = (max(1, int(width * scale + 0.5)), max(1, int(height * scale + 0.5)))
        found = geometry_of(spec, width, height)
        assert (found.resized_width, found.resized_height) == wanted
        assert (found.left, found.top) == (0, 0)


def test_squash_ignores_the_aspect_ratio():
    spec = Preprocess((160, 200), (160, 200), ResizeMode.SQUASH)
    assert geometry_of(spec, 999, 3) == Geometry(200, 160, 0, 0, 200, 160)


def test_no_aspect_ratio_gives_an_empty_picture():
    for mode, pad in ((ResizeMode.LONGEST, PadPosition.CENTER), (ResizeMode.LONGEST, PadPosition.CORNER)):
        found = geometry_of(Preprocess((224, 224), (224, 224), mode, pad=pad), 65500, 1)
        assert (found.resized_width, found.resized_height) == (224, 1)


def test_a_spec_survives_json():
    spec = Preprocess(
        (160, 224),
        (192, 256),
        ResizeMode.SQUASH,
        Interpolation.LANCZOS,
        (0.5, 0.4, 0.3),
        (0.1, 0.2, 0.3),
        (1, 2, 3),
        PadPosition.CORNER,
        Exif.IGNORE,
        ColorOrder.BGR,
    )
    assert Preprocess.from_json(spec.to_json()) == spec
    assert Preprocess.from_json(spec.to_json()).fingerprint() == spec.fingerprint()


@pytest.mark.parametrize(
    "change", [{"size": [224]}, {"mode": "longer"}, {"mean": [0.5, 0.5]}, {"std": [0, 1, 1]}, {"resize": [0, 0]}]
)
def test_a_bad_value_is_named(change):
    values = {**Preprocess((224, 224), (256, 256)).to_json(), **change}
    with pytest.raises(ModelError, match="Preprocessing"):
        Preprocess.from_json(values)


def test_a_missing_value_is_named():
    values = Preprocess((224, 224), (256, 256)).to_json()
    del values["interpolation"]
    with pytest.raises(ModelError, match="interpolation"):
        Preprocess.from_json(values)


def test_every_field_changes_the_fingerprint():
    spec = Preprocess((224, 224), (256, 256))
    changed = [
        Preprocess((224, 225), (256, 256)),
        Preprocess((224, 224), (257, 257)),
        Preprocess((224, 224), (256, 256), ResizeMode.SQUASH),
        Preprocess((224, 224), (256, 256), interpolation=Interpolation.BICUBIC),
        Preprocess((224, 224), (256, 256), mean=(0.5, 0.5, 0.5)),
        Preprocess((224, 224), (256, 256), std=(0.5, 0.5, 0.5)),
        Preprocess((224, 224), (256, 256), fill=(1, 0, 0)),
        Preprocess((224, 224), (256, 256), pad=PadPosition.CORNER),
        Preprocess((224, 224), (256, 256), exif=Exif.IGNORE),
        Preprocess((224, 224), (256, 256), color_order=ColorOrder.BGR),
    ]
    assert len({spec.fingerprint(), *(other.fingerprint() for other in changed)}) == len(changed) + 1
