"""DALI on a GPU: JPEGs are decoded, resized and cropped there; the host only reads their headers.

What a GPU cannot take (other formats, CMYK, tiny or broken files) the host decodes and resizes, several at a time, and
sends up as finished rows: to pack a whole picture into pinned memory for a resize on the GPU takes more CPU than to
resize it (1500 x 1000: 2.3 ms against 0.45). When DALI loses a run for one bad picture, nvImageCodec says which
pictures are bad; those go to the host, which judges them as it does in every other decoder, and the others run again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..batch import Decoded, Encoded, Failure
from ..cuda.device import CudaBuffer, CudaDevice
from ..device import Buffer, Stream
from ..errors import DeviceError
from ..preprocess import Preprocess
from .dali_jobs import Job, feed, in_runs, job_of
from .device_interface import DeviceBatch, Placed, copy_rows
from .host_decoders import HostDecoders, StagedPicture
from .interface import DecodeOptions
from .picture_check import PictureCheck

_LOG = logging.getLogger(__name__)

_MAX_PIXELS_IN_FLIGHT = 256 << 20
"""Decoded pixels of one run, 768 MiB of RGB on the GPU: DALI holds all pictures of a run at once."""

_LOST_RUN = (RuntimeError, MemoryError)
_WORDS_OF_A_FAILING_GPU = ("cudaError", "CUDA_ERROR", "CUDA allocation failed")


class QueuedPicture(NamedTuple):
    """A JPEG for the GPU; ``row`` of the staged pixels is its own, should the host have to decode it after all."""

    sample: Encoded
    job: Job
    row: int


Prepared = list[QueuedPicture | StagedPicture | Failure]


class DaliGpuDecoder:
    """Decodes JPEGs on the GPU through ``new_pipeline()``, a pipeline of ``decode_graph``, and the rest on ``host``."""

    name = "dali-gpu"

    def __init__(
        self,
        spec: Preprocess,
        options: DecodeOptions,
        device: CudaDevice,
        host: HostDecoders,
        *,
        max_batch: int,
        new_pipeline: Callable[[], Any],
        check: PictureCheck,
    ) -> None:
        self._spec = spec
        self._device = device
        self._host = host
        self._max_batch = max_batch
        self._most_pixels = min(_MAX_PIXELS_IN_FLIGHT, options.max_pixels)
        self._new_pipeline = new_pipeline
        self._pipeline = new_pipeline()
        self._check = check
        self._outputs: list[object] = []

    def prepare(self, samples: Sequence[Encoded], staged: NDArray[np.uint8]) -> Prepared:
        jobs = [job_of(sample.data, self._spec, max_pixels=self._most_pixels) for sample in samples]
        for_host = [(row, sample) for row, (sample, job) in enumerate(zip(samples, jobs, strict=True)) if job is None]
        on_host = iter(self._host.decode_all(for_host, staged))
        return [
            next(on_host) if job is None else QueuedPicture(sample, job, row)
            for row, (sample, job) in enumerate(zip(samples, jobs, strict=True))
        ]

    def start(self, prepared: Prepared, staged: NDArray[np.uint8], pixels: Buffer, *, stream: Stream) -> DeviceBatch:
        queued = [entry for entry in prepared if isinstance(entry, QueuedPicture)]
        on_gpu = self._run_all([entry.job for entry in queued], stream)
        batch = DeviceBatch([], [])
        rows: list[Placed] = []
        for each in prepared:
            entry: QueuedPicture | StagedPicture | Failure = each
            if isinstance(entry, QueuedPicture):
                place = next(on_gpu)
                if place is not None:
                    job = entry.job
                    batch.decoded.append(Decoded(entry.sample.id, job.width, job.height, self.name))
                    rows.append(place)
                    continue
                entry = self._host.decode(entry.sample, entry.row, staged)
            if isinstance(entry, Failure):
                batch.failures.append(entry)
            else:
                batch.decoded.append(entry.decoded)
                rows.append(Placed(staged, entry.row))
        copy_rows(self._device, pixels, rows, stream=stream)
        batch.held, self._outputs = self._outputs, []
        return batch

    def close(self) -> None:
        self._outputs = []
        self._pipeline = None
        self._check.close()
        self._host.close()

    def _run_all(self, jobs: Sequence[Job], stream: Stream) -> Iterator[Placed | None]:
        """Where the pixels of each job are, in order; None for those that the GPU's decoders refuse."""
        for run in in_runs(jobs, max_batch=self._max_batch, max_pixels=_MAX_PIXELS_IN_FLIGHT):
            try:
                yield from self._run(run, stream)
            except _LOST_RUN as error:
                _raise_if_the_gpu_fails(error)
                yield from self._rerun(run, stream)

    def _rerun(self, jobs: Sequence[Job], stream: Stream) -> Iterator[Placed | None]:
        """A run that was lost, without the pictures that lose it."""
        refused = self._check.refused([job.data for job in jobs])
        survivors = iter(self._run_survivors([job for job, bad in zip(jobs, refused, strict=True) if not bad], stream))
        for bad in refused:
            yield None if bad else next(survivors)

    def _run_survivors(self, jobs: Sequence[Job], stream: Stream) -> Sequence[Placed | None]:
        if not jobs:
            return []
        try:
            return self._run(jobs, stream)
        except _LOST_RUN as error:
            _raise_if_the_gpu_fails(error)
            _LOG.warning("DALI lost a run of pictures that nvImageCodec decodes, so each is tried alone: %s", error)
        # Either DALI refuses what nvImageCodec takes, or the lost run has spoiled the pipeline.
        self._pipeline = self._new_pipeline()
        return [self._run_alone(job, stream) for job in jobs]

    def _run_alone(self, job: Job, stream: Stream) -> Placed | None:
        try:
            return self._run([job], stream)[0]
        except _LOST_RUN as error:
            _raise_if_the_gpu_fails(error)
            return None

    def _run(self, jobs: Sequence[Job], stream: Stream) -> Sequence[Placed]:
        """One run on the GPU. What DALI gives is in the order of ``stream``, as is all that is done with it here."""
        feed(self._pipeline, jobs, self._spec)
        (outputs,) = self._pipeline.run(stream)
        self._outputs.append(outputs)  # DALI may use this memory again as soon as nobody holds it
        if outputs.is_dense_tensor():
            pixels = self._device.view(outputs.as_tensor(), stream=stream)
            return [Placed(pixels, row) for row in range(len(jobs))]
        views = [self._device.view(outputs.at(row), stream=stream) for row in range(len(jobs))]
        return [Placed(CudaBuffer(view.address, (1, *view.shape), view.dtype, view), 0) for view in views]


def _raise_if_the_gpu_fails(error: Exception) -> None:
    """Raise DeviceError unless it was a picture that DALI stumbled over."""
    if isinstance(error, MemoryError) or any(words in str(error) for words in _WORDS_OF_A_FAILING_GPU):
        reason = " ".join(str(error).split()).rstrip(".") or "out of memory"
        raise DeviceError(
            f"DALI failed on the GPU: {reason}. Lower --batch-size if memory ran out; otherwise start the same command "
            "again: it resumes."
        ) from error
