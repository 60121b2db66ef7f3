"""Pictures that int8 ranges are chosen from and that every precision is judged on, decoded as a run decodes them."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.batch import Failure, Sample
from ..engine.decoders.interface import DecodeOptions
from ..engine.decoders.make import DecoderName, make_decoder
from ..engine.demo import demo_photos
from ..engine.errors import InputNotFoundError, UsageError
from ..engine.pipeline import batches_of, read
from ..engine.sources.interface import Source
from ..engine.sources.memory import MemorySource
from ..engine.sources.open import open_source
from ..engine.spec import ModelSpec

LIMIT = 512
MAX_BYTES = 512 << 20
"""Pixels that a set holds in memory at most: 512 pictures of 591 x 591."""

LISTED = 20_000
"""So many samples are listed to draw from: folders sorted by class would else give pictures of one class."""

DEMO_PICTURES = 64
SEED = 20_240_301

_DECODED_AT_ONCE = 8

Input = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class CalibrationSet:
    """Decoded pictures of one model's input size.

    ``pixels`` is uint8 [n, height, width, 3] RGB and ``pixels[i]`` shows ``ids[i]``. ``content`` is the SHA-256 (hex)
    over ids and pixels. ``skipped`` are the samples that could not be used. ``description`` is a sentence for people.
    """

    ids: tuple[str, ...]
    pixels: NDArray[np.uint8]
    content: str
    skipped: tuple[Failure, ...]
    description: str

    def __len__(self) -> int:
        return len(self.ids)

    def batches(self, size: int) -> Iterator[NDArray[np.uint8]]:
        """Pixels in order, ``size`` pictures at a time; the last batch holds what is left."""
        for start in range(0, len(self), size):
            yield self.pixels[start : start + size]

    def half(self) -> CalibrationSet:
        """Every other picture, so that the gate also sees pictures that ranges were not chosen from."""
        if len(self) < 2:
            return self
        ids, pixels = self.ids[::2], np.ascontiguousarray(self.pixels[::2])
        words = f"every other one ({len(ids)}) of {self.description}"
        return CalibrationSet(ids, pixels, content_of(ids, pixels), (), words)

    def to_json(self) -> dict[str, Any]:
        return {
            "pictures": len(self),
            "skipped": len(self.skipped),
            "content": self.content,
            "description": self.description,
        }


def calibration_set(
    inputs: Input | Sequence[Input] | Source | None,
    spec: ModelSpec,
    *,
    limit: int = LIMIT,
    decoder: DecoderName = DecoderName.AUTO,
    decode: DecodeOptions | None = None,
) -> CalibrationSet:
    """At most ``limit`` pictures of ``inputs``, drawn with a fixed seed from the first LISTED samples.

    Without ``inputs``: the demo photos and seeded crops of them, which ``description`` says. Pictures that cannot be
    used are skipped and counted. Big inputs lower the limit, so that no more than MAX_BYTES of pixels are held. Raises
    InputNotFoundError when no picture is left, and what ``open_source`` and ``make_decoder`` raise.
    """
    if limit < 1:
        raise UsageError(f"The limit of calibration pictures must be >= 1, got {limit}.")
    source = _source_of(inputs, limit)
    height, width = spec.preprocess.size
    affordable = max(1, MAX_BYTES // (height * width * 3))
    chosen, lost, listed = _draw(source, min(limit, affordable))
    buffer = np.empty((len(chosen), height, width, 3), dtype=np.uint8)
    ids: list[str] = []
    coder = make_decoder(decoder, spec.preprocess, decode or DecodeOptions(), max_batch=_DECODED_AT_ONCE)
    try:
        for group in batches_of(chosen, _DECODED_AT_ONCE):
            encoded, unread = read(group)
            batch = coder.decode(encoded, buffer[len(ids) : len(ids) + len(encoded)])
            ids.extend(decoded.id for decoded in batch.decoded)
            lost.extend([*unread, *batch.failures])
    finally:
        coder.close()
    if not ids:
        raise InputNotFoundError(_nothing_usable(source, listed, lost))
    pixels = buffer[: len(ids)]
    words = _description(source, len(ids), listed, len(lost), by_size=affordable < min(limit, listed))
    return CalibrationSet(tuple(ids), pixels, content_of(ids, pixels), tuple(lost), words)


def content_of(ids: Sequence[str], pixels: NDArray[np.uint8]) -> str:
    """SHA-256 (hex) over the shape, the ids and the pixels, each picture after its id."""
    digest = hashlib.sha256(repr(pixels.shape).encode())
    for name, picture in zip(ids, pixels, strict=True):
        digest.update(f"{len(name.encode())}:{name}".encode())
        digest.update(np.ascontiguousarray(picture).data)
    return digest.hexdigest()


def _source_of(inputs: Input | Sequence[Input] | Source | None, limit: int) -> Source:
    if inputs is None:
        return _DemoSource(min(limit, DEMO_PICTURES))
    if isinstance(inputs, str | os.PathLike | Sequence):
        return open_source(inputs)
    return inputs


def _draw(source: Source, count: int) -> tuple[list[Sample], list[Failure], int]:
    """``count`` samples in the source's order (reservoir sampling), the failures met, and the number listed."""
    random = np.random.default_rng(SEED)
    kept: list[tuple[int, Sample]] = []
    lost: list[Failure] = []
    listed = 0
    for entry in source:
        if isinstance(entry, Failure):
            lost.append(entry)
            continue
        place = listed if listed < count else int(random.integers(0, listed + 1))
        if place < count:
            kept[place : place + 1] = [(listed, entry)]
        listed += 1
        if listed == LISTED:
            break
    return [sample for _, sample in sorted(kept, key=lambda numbered: numbered[0])], lost, listed


def _description(source: Source, used: int, listed: int, lost: int, *, by_size: bool) -> str:
    words = f"{used} pictures of {listed}{' or more' if listed == LISTED else ''} in {source.describe()}"
    if lost:
        words += f", {lost} skipped as unusable"
    return words + (f" (no more fit in {MAX_BYTES >> 20} MiB)" if by_size else "")


def _nothing_usable(source: Source, listed: int, lost: Sequence[Failure]) -> str:
    ignored = ", ".join(f"{count:,} {reason}" for reason, count in source.ignored.most_common(12)) or "nothing else"
    first = f"; the first: {lost[0].id}: {lost[0].message[:300]}" if lost else ""
    return (
        f"No usable picture for calibration in {source.describe()}: {listed:,} images listed, {len(lost):,} unusable"
        f"{first}; also seen: {ignored}. Name a folder, list or archive of images like those that the model will see."
    )


class _DemoSource(MemorySource):
    """The demo photos, then crops of them, drawn with a fixed seed."""

    def __init__(self, count: int) -> None:
        photos = demo_photos()
        whole = [Sample(f"demo/{photo.name}", photo.read_bytes) for photo in photos]
        crops = [
            Sample(f"demo/{photos[i % len(photos)].name}#crop{i}", partial(_crop, photos[i % len(photos)], i))
            for i in range(count - len(photos))
        ]
        super().__init__([*whole, *crops][:count])
        self._words = (
            f"the {len(photos)} demo photos and seeded crops of them (no INPUT was given: ranges and agreement may be "
            "others on your images)"
        )

    def describe(self) -> str:
        return self._words


def _crop(photo: Path, number: int) -> bytes:
    """PNG of a random part of ``photo``: a fifth to all of its area, aspect 3:4 to 4:3, mirrored half of the time."""
    from PIL import Image, ImageOps

    random = np.random.default_rng((SEED, number))
    with Image.open(photo) as opened:
        picture = opened.convert("RGB")
    area = picture.width * picture.height * random.uniform(0.2, 1)
    aspect = random.uniform(3 / 4, 4 / 3)
    width = min(picture.width, round((area * aspect) ** 0.5))
    height = min(picture.height, round((area / aspect) ** 0.5))
    left, top = random.integers(0, picture.width - width + 1), random.integers(0, picture.height - height + 1)
    part = picture.crop((int(left), int(top), int(left) + width, int(top) + height))
    buffer = io.BytesIO()
    (ImageOps.mirror(part) if number % 2 else part).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()
