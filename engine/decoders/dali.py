"""NVIDIA DALI as a decoder: whole batches of JPEGs through one pipeline, made here and nowhere else.

DALI cannot skip a bad picture: its batch is lost. So only JPEGs that look whole go there, and the
pictures of a lost batch are run again one by one (the dynamic executor survives the loss). All else
takes the same way as in the other decoders. Sizes, offsets and turns are given explicitly, never left to DALI,
whose own rules round differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn as dali_fn
from nvidia.dali import types as dali_types
from nvidia.dali.pipeline import pipeline_def

from ..batch import Batch, Decoded, Encoded
from ..preprocess import Exif, Interpolation, Preprocess
from .dali_jobs import Job, feed, in_runs, job_of, pads
from .each import decode_each
from .formats import silence_pillow
from .general import GeneralDecoder
from .interface import DecodeOptions
from .resize import SimdResizer

# DALI's type stubs know neither its constants nor arguments that differ by sample
fn: Any = dali_fn
types: Any = dali_types

_MAX_PIXELS_IN_FLIGHT = 32 << 20
"""Decoded pixels of one run, 96 MiB of RGB: DALI holds all pictures of a run at once, and keeps that memory."""

HW_DECODER_LOAD = 0.65
"""Share of a GPU batch's baseline JPEGs for its hardware decoder, where it has one; DALI's own default."""

EXPECTED_SIDE = 1024
"""Pixels of width and height that a GPU's decoder sets memory aside for; larger pictures make it grow."""

_INTERPOLATIONS = {
    Interpolation.BILINEAR: types.INTERP_LINEAR,
    Interpolation.BICUBIC: types.INTERP_CUBIC,
    Interpolation.LANCZOS: types.INTERP_LANCZOS3,
}


@pipeline_def(enable_conditionals=True)
def decode_graph(device: str, spec: Preprocess) -> Any:
    """Pipeline from encoded JPEGs to uint8 [height, width, 3] RGB; ``device`` is "cpu" or "mixed" (GPU).

    Reads ``encoded`` (bytes) and, for each picture, what ``feed`` gives. ``adjust_orientation`` is off:
    the turn is ours, so that an EXIF block that parsers read differently cannot bend a picture. Chroma is
    interpolated as libjpeg-turbo does it, which a GPU would not do by itself. The last three arguments of the
    decoder mean nothing to a CPU.
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
        hw_decoder_load=HW_DECODER_LOAD,
        preallocate_width_hint=EXPECTED_SIDE,
        preallocate_height_hint=EXPECTED_SIDE,
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


def built_graph(device: str, spec: Preprocess, *, max_batch: int, threads: int, ordinal: int | None) -> Any:
    """``decode_graph`` ready to run; ``ordinal`` None: DALI must not look for a driver.

    A run begins when it is asked for and takes what was fed just before it. Raises RuntimeError where DALI cannot
    use the GPU.
    """
    graph = decode_graph(
        device=device, spec=spec, batch_size=max_batch, num_threads=threads, device_id=ordinal, prefetch_queue_depth=1
    )
    pipeline = cast("Any", graph)
    pipeline.build()
    return pipeline


class DaliDecoder:
    """Decodes JPEGs with DALI on the CPU, everything else with Pillow; one instance for each lane."""

    name = "dali"

    def __init__(self, spec: Preprocess, options: DecodeOptions, *, max_batch: int) -> None:
        silence_pillow()
        self._spec = spec
        self._most_pixels = min(_MAX_PIXELS_IN_FLIGHT, options.max_pixels)
        self._max_batch = max_batch
        self._resizer = SimdResizer(spec)
        self._general = GeneralDecoder(spec, options, self._resizer)
        # One thread: lanes are the parallelism.
        self._pipeline = built_graph("cpu", spec, max_batch=max_batch, threads=1, ordinal=None)

    def decode(self, samples: Sequence[Encoded], out: NDArray[np.uint8]) -> Batch:
        jobs = [job_of(sample.data, self._spec, max_pixels=self._most_pixels) for sample in samples]
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

    def _run_all(self, jobs: Sequence[Job]) -> Iterator[NDArray[np.uint8] | None]:
        """Pixels [height, width, 3] of each job in order; None for those that DALI refuses."""
        for run in in_runs(jobs, max_batch=self._max_batch, max_pixels=_MAX_PIXELS_IN_FLIGHT):
            yield from self._run_isolated(run)

    def _run_isolated(self, jobs: Sequence[Job]) -> Iterator[NDArray[np.uint8] | None]:
        try:
            yield from self._run(jobs)
        except RuntimeError:
            if len(jobs) == 1:
                yield None
                return
            for job in jobs:
                yield from self._run_isolated([job])

    def _run(self, jobs: Sequence[Job]) -> NDArray[np.uint8]:
        feed(self._pipeline, jobs, self._spec)
        (outputs,) = self._pipeline.run()
        return np.array(outputs.as_tensor())
