"""NVIDIA DALI as a decoder: whole batches of JPEGs through one pipeline, made here and nowhere else.

DALI cannot skip a bad picture: its batch is lost. So only JPEGs that look whole go there, and the
pictures of a lost batch are run again one by one (the dynamic executor survives the loss). All else
takes the same way as in the other decoders. Sizes, offsets and turns are given explicitly, never left to DALI,
whose own rules round differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn as dali_fn
from nvidia.dali import types as dali_types
from nvidia.dali.pipeline import pipeline_def

from ..batch import Batch, Decoded, Encoded
from ..errors import DecodeError
from ..preprocess import Exif, Interpolation, Preprocess, ResizeMode, geometry_of
from .each import decode_each
from .formats import silence_pillow
from .general import GeneralDecoder
from .interface import DecodeOptions
from .jpeg import EOI, SOI, jpeg_header
from .resize import SimdResizer
from .window import UPRIGHT, Window, is_swapped, mirrors, stored_geometry, window_of

# DALI's type stubs know neither its constants nor arguments that differ by sample
fn: Any = dali_fn
types: Any = dali_types

_MAX_PIXELS_IN_FLIGHT = 32 << 20
"""Decoded pixels of one run, 96 MiB of RGB: DALI holds all pictures of a run at once, and keeps that memory."""

_FEWEST_SIDE = 32
"""DALI repeats the edge where Pillow leaves it out: on smaller pictures that is up to 0.9 level (mean)."""

_INTERPOLATIONS = {
    Interpolation.BILINEAR: types.INTERP_LINEAR,
    Interpolation.BICUBIC: types.INTERP_CUBIC,
    Interpolation.LANCZOS: types.INTERP_LANCZOS3,
}


class _Job(NamedTuple):
    """One JPEG for DALI: upright size, and the window in its stored orientation and in the row."""

    data: bytes
    width: int
    height: int
    orientation: int
    window: Window
    left: int
    top: int


@pipeline_def(enable_conditionals=True)
def decode_graph(device: str, spec: Preprocess) -> Any:
    """Pipeline from encoded JPEGs to uint8 [height, width, 3] RGB; ``device`` is "cpu" or "mixed" (GPU).

    Reads ``encoded`` (bytes) and, for each picture, what ``_feed`` gives. ``adjust_orientation`` is off:
    the turn is ours, so that an EXIF block that parsers read differently cannot bend a picture.
    """
    encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
    size = fn.external_source(name="size", dtype=types.FLOAT, ndim=1)
    start = fn.external_source(name="start", dtype=types.FLOAT, ndim=1)
    end = fn.external_source(name="end", dtype=types.FLOAT, ndim=1)
    image = fn.decoders.image(
        encoded,
        device=device,
        output_type=types.RGB,
        adjust_orientation=False,
        jpeg_fancy_upsampling=True,
    )
    image = fn.resize(
        image,
        size=size,
        roi_start=start,
        roi_end=end,
        interp_type=_INTERPOLATIONS[spec.interpolation],
        antialias=True,
        subpixel_scale=False,
    )
    if spec.exif is Exif.APPLY:
        swap = fn.external_source(name="swap", dtype=types.BOOL, ndim=0)
        if swap:
            image = fn.transpose(image, perm=[1, 0, 2], transpose_layout=False)
        image = fn.flip(
            image,
            horizontal=fn.external_source(name="mirror_x", dtype=types.INT32, ndim=0),
            vertical=fn.external_source(name="mirror_y", dtype=types.INT32, ndim=0),
        )
    if pads(spec):
        image = fn.slice(
            image,
            start=fn.external_source(name="offset", dtype=types.INT32, ndim=1),
            shape=list(spec.size),
            axes=[0, 1],
            out_of_bounds_policy="pad",
            fill_values=[float(level) for level in spec.fill],
        )
    return image


def pads(spec: Preprocess) -> bool:
    """Whether a resized picture can be smaller than the input."""
    return spec.mode is ResizeMode.LONGEST or spec.resize[0] < spec.size[0] or spec.resize[1] < spec.size[1]


class DaliDecoder:
    """Decodes JPEGs with DALI on the CPU, everything else with Pillow; one instance for each lane."""

    name = "dali"

    def __init__(self, spec: Preprocess, options: DecodeOptions, *, max_batch: int) -> None:
        silence_pillow()
        self._spec = spec
        self._options = options
        self._max_batch = max_batch
        self._resizer = SimdResizer(spec)
        self._general = GeneralDecoder(spec, options, self._resizer)
        # device_id None: DALI must not look for a driver. One thread: lanes are the parallelism.
        graph = decode_graph(
            device="cpu", spec=spec, batch_size=max_batch, num_threads=1, device_id=None, prefetch_queue_depth=1
        )
        self._pipeline = cast("Any", graph)
        self._pipeline.build()

    def decode(self, samples: Sequence[Encoded], out: NDArray[np.uint8]) -> Batch:
        jobs = [self._job(sample.data) for sample in samples]
        decoded = self._run_all([job for job in jobs if job is not None])
        in_order = iter(jobs)

        def decode_one(sample: Encoded, row: NDArray[np.uint8]) -> Decoded:
            job = next(in_order)
            pixels = next(decoded) if job is not None else None
            if job is None or pixels is None:
                return self._general.decode_one(sample, row)
            row[...] = pixels
            return Decoded(sample.id, job.width, job.height, self.name)

        return decode_each(samples, out, decode_one)

    def close(self) -> None:
        del self._pipeline
        self._resizer.release()

    def _job(self, data: bytes) -> _Job | None:
        """What DALI needs to know of ``data``, or None where the general decode is to judge it."""
        if not data.startswith(SOI):
            return None
        try:
            header = jpeg_header(data)
        except DecodeError:
            return None
        looks_whole = header.scan >= 0 and data.rfind(EOI, header.scan) >= 0
        most = min(_MAX_PIXELS_IN_FLIGHT, self._options.max_pixels)
        fits = min(header.width, header.height) >= _FEWEST_SIDE and header.width * header.height <= most
        if header.components == 4 or not looks_whole or not fits:
            return None
        orientation = header.orientation if self._spec.exif is Exif.APPLY else UPRIGHT
        width, height = header.width, header.height
        if is_swapped(orientation):
            width, height = height, width
        geometry = geometry_of(self._spec, width, height)
        window = window_of(stored_geometry(geometry, orientation), header.width, header.height)
        return _Job(data, width, height, orientation, window, max(-geometry.left, 0), max(-geometry.top, 0))

    def _run_all(self, jobs: Sequence[_Job]) -> Iterator[NDArray[np.uint8] | None]:
        """Pixels [height, width, 3] of each job in order; None for those that DALI refuses."""
        chunk: list[_Job] = []
        pixels = 0
        for job in jobs:
            if chunk and (len(chunk) == self._max_batch or pixels + job.width * job.height > _MAX_PIXELS_IN_FLIGHT):
                yield from self._run_isolated(chunk)
                chunk, pixels = [], 0
            chunk.append(job)
            pixels += job.width * job.height
        if chunk:
            yield from self._run_isolated(chunk)

    def _run_isolated(self, jobs: Sequence[_Job]) -> Iterator[NDArray[np.uint8] | None]:
        try:
            yield from self._run(jobs)
        except RuntimeError:
            if len(jobs) == 1:
                yield None
                return
            for job in jobs:
                yield from self._run_isolated([job])

    def _run(self, jobs: Sequence[_Job]) -> NDArray[np.uint8]:
        self._feed(jobs)
        (outputs,) = self._pipeline.run()
        return np.array(outputs.as_tensor())

    def _feed(self, jobs: Sequence[_Job]) -> None:
        windows = [job.window for job in jobs]
        feed = self._pipeline.feed_input
        feed("encoded", [np.frombuffer(job.data, np.uint8) for job in jobs])
        feed("size", [np.array([w.height, w.width], np.float32) for w in windows])
        feed("start", [np.array([w.top, w.left], np.float32) for w in windows])
        feed("end", [np.array([w.top + w.box_height, w.left + w.box_width], np.float32) for w in windows])
        if self._spec.exif is Exif.APPLY:
            feed("swap", [np.array(is_swapped(job.orientation)) for job in jobs])
            feed("mirror_x", [np.array(mirrors(job.orientation)[0], np.int32) for job in jobs])
            feed("mirror_y", [np.array(mirrors(job.orientation)[1], np.int32) for job in jobs])
        if pads(self._spec):
            feed("offset", [np.array([-job.top, -job.left], np.int32) for job in jobs])
