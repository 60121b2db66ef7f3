"""Photos through a DALI pipeline as its users write one, with the sizes and offsets of the spec."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.errors import ModelError
from ...engine.preprocess import Exif, Interpolation, Preprocess, ResizeMode
from .interface import SystemOptions

_FILTERS = {Interpolation.BILINEAR: "INTERP_LINEAR", Interpolation.BICUBIC: "INTERP_CUBIC"}


class DaliPhotos:
    """uint8 [n, height, width, 3] batches of files: DALI decodes on all its threads and keeps two batches ahead.

    ``device`` is DALI's word for where JPEGs are decoded: ``cpu`` or ``mixed`` (then batches are on the GPU).
    Raises ModelError for a spec that pads, or a filter that DALI lacks.
    """

    def __init__(self, files: Sequence[Path], spec: Preprocess, options: SystemOptions) -> None:
        pipeline: Any = import_module("nvidia.dali.pipeline")
        _check(spec)
        self._files = files
        self._batch_size = options.batch_size
        self._starts: list[float] = []
        gpu = int(options.device.rpartition(":")[2]) if options.on_gpu else None
        place = "cpu" if gpu is None else "mixed"
        size = {"batch_size": options.batch_size, "num_threads": options.cpus, "device_id": gpu}
        self._pipeline: Any = pipeline.pipeline_def(_graph)(place, spec, self._read, **size)
        self._pipeline.build()

    def batches(self) -> Iterator[tuple[Any, float]]:
        """DALI's batches in the order of the files, and when reading of each began; valid until the next one."""
        self._starts.clear()
        for number in range(-(-len(self._files) // self._batch_size)):
            (pictures,) = self._pipeline.run()
            yield pictures, self._starts[number]
        self._pipeline.reset()  # and nothing is decoded ahead before the next pass

    def _read(self) -> Iterator[list[NDArray[np.uint8]]]:
        for first in range(0, len(self._files), self._batch_size):
            self._starts.append(time.perf_counter())
            yield [np.fromfile(path, np.uint8) for path in self._files[first : first + self._batch_size]]


def _check(spec: Preprocess) -> None:
    pads = spec.resize[0] < spec.size[0] or spec.resize[1] < spec.size[1]
    if spec.mode is ResizeMode.LONGEST or pads or spec.interpolation not in _FILTERS:
        raise ModelError(
            "The DALI pipeline here resizes by the shorter side or to an exact size, bilinear or bicubic, "
            f"without padding; the model wants {spec.mode} {spec.resize} for {spec.size}, {spec.interpolation}."
        )


def _graph(device: str, spec: Preprocess, read: Any) -> Any:
    """Encoded files to uint8 [height, width, 3] RGB at the spec's size."""
    dali: Any = import_module("nvidia.dali.fn")
    types: Any = import_module("nvidia.dali.types")
    encoded = dali.external_source(source=read, batch=True, cycle="raise", dtype=types.UINT8, ndim=1)
    upright = spec.exif is Exif.APPLY
    images = dali.decoders.image(encoded, device=device, output_type=types.RGB, adjust_orientation=upright)
    shape = dali.peek_image_shape(encoded, dtype=types.INT64, adjust_orientation=upright)
    height, width = _resized(spec, shape[0], shape[1])
    images = dali.resize(
        images,
        size=dali.cast(dali.stack(height, width), dtype=types.FLOAT),
        interp_type=getattr(types, _FILTERS[spec.interpolation]),
        antialias=True,
    )
    start = dali.stack(_offset(height, spec.size[0]), _offset(width, spec.size[1]))
    return dali.slice(images, start=dali.cast(start, dtype=types.INT32), shape=list(spec.size), axes=[0, 1])


def _resized(spec: Preprocess, height: Any, width: Any) -> tuple[Any, Any]:
    """Resized height and width as `geometry_of` has them, in whole numbers of DALI's graph."""
    target_height, target_width = spec.resize
    if spec.mode is ResizeMode.SQUASH:
        return 0 * height + target_height, 0 * width + target_width
    dali: Any = import_module("nvidia.dali.math")
    short = dali.min(height, width)
    return target_height * height // short, target_width * width // short


def _offset(resized: Any, wanted: int) -> Any:
    """Half of what is cropped, rounded half to even."""
    spare = resized - wanted
    half = spare // 2
    odd = (spare - half * 2) * (half - half // 2 * 2)
    return half + odd
