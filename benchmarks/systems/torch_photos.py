"""The photos of a PyTorch system: a dataset, its transform, and a DataLoader whose workers live on between passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...engine.preprocess import Exif, Preprocess, geometry_of

Load = Callable[[Path], Any]
"""One picture, as a tensor of the model's input size."""


class Photos:
    """Map-style dataset: the tensor of a photo, and when work on it began (seconds, comparable between processes)."""

    def __init__(self, files: Sequence[Path], load: Load) -> None:
        self._files = files
        self._load = load

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, float]:
        started_s = time.perf_counter()
        return self._load(self._files[index]), started_s


def batches_of(files: Sequence[Path], load: Load, *, batch_size: int, workers: int, pinned: bool = False) -> Any:
    """DataLoader that gives tensors [n, ...] in the order of the files; its workers start with the first pass."""
    from torch.utils.data import DataLoader

    dataset: Any = Photos(files, load)
    return DataLoader(dataset, batch_size=batch_size, num_workers=workers, persistent_workers=True, pin_memory=pinned)


def with_starts(loader: Any) -> Iterator[tuple[Any, float]]:
    """Tensors of one pass, and when work on the first picture of each began."""
    for pictures, started_s in loader:
        yield pictures, float(started_s.min())


def pil_photo(path: Path, spec: Preprocess) -> Any:
    """RGB image of ``path``, upright where the spec says so, resized and cropped by PIL through torchvision."""
    from PIL import Image, ImageOps

    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image) if spec.exif is Exif.APPLY else image
        return fitted(upright.convert("RGB"), spec, upright.width, upright.height)


def tensor_photo(path: Path, spec: Preprocess) -> Any:
    """uint8 [3, height, width] of ``path``, decoded, resized and cropped by torchvision without PIL."""
    from torchvision.io import ImageReadMode, decode_image, read_file

    pixels = decode_image(read_file(str(path)), mode=ImageReadMode.RGB, apply_exif_orientation=spec.exif is Exif.APPLY)
    return fitted(pixels, spec, pixels.shape[2], pixels.shape[1])


def fitted(picture: Any, spec: Preprocess, width: int, height: int) -> Any:
    """Picture of torchvision (PIL or tensor), antialiased to the spec's size, cropped or padded."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    geometry = geometry_of(spec, width, height)
    resized = functional.resize(
        picture,
        [geometry.resized_height, geometry.resized_width],
        interpolation=InterpolationMode(spec.interpolation.value),
        antialias=True,
    )
    left, top = max(0, -geometry.left), max(0, -geometry.top)
    right = max(0, geometry.left + geometry.width - geometry.resized_width)
    bottom = max(0, geometry.top + geometry.height - geometry.resized_height)
    if left or top or right or bottom:
        resized = functional.pad(resized, [left, top, right, bottom], fill=list(spec.fill))
    return functional.crop(resized, geometry.top + top, geometry.left + left, geometry.height, geometry.width)
