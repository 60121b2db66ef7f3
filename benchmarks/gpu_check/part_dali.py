"""DALI on the GPU: the CPU twin's pixels, what a bad picture costs, 2,000 overlapped decodes, and its rate."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.batch import Encoded
from ...engine.cuda.device import CudaDevice
from ...engine.decoders.device_interface import DeviceBatch, DeviceDecoder
from ...engine.decoders.interface import DecodeOptions
from ...engine.decoders.make import DecoderName, make_decoder
from ...engine.decoders.make_on_device import make_device_decoder
from ...engine.decoders.picture_check import PictureCheck
from ...engine.preprocess import Exif, Interpolation, Preprocess, ResizeMode
from .lanes_alone import new_lane, overlapped_equals_alone, samples_of, stage_rates
from .late_affine import LateAffineEngine
from .pictures import broken_jpeg, photo_sized_jpegs, smooth_jpeg
from .record import Check, CheckFailedError, Found

_MOST_DIFFERENCE = 1.0
"""Levels, mean of a picture: nvJPEG's inverse transform rounds differently."""

_BATCH, _SOAK_BATCH, _SOAK_BATCHES, _SOAK_ROUNDS = 32, 8, 2000, 3
_REPEAT = 60
_THREADS = 8
_SMALL = Preprocess((64, 64), (72, 72))
_SPECS = {
    "bilinear": Preprocess((224, 224), (256, 256)),
    "bicubic": Preprocess((224, 224), (256, 256), interpolation=Interpolation.BICUBIC),
    "lanczos": Preprocess((160, 160), (192, 192), interpolation=Interpolation.LANCZOS),
    "padded": Preprocess((224, 224), (224, 224), ResizeMode.LONGEST, fill=(9, 99, 200)),
    "without EXIF": Preprocess((224, 224), (256, 256), exif=Exif.IGNORE),
}


@functools.cache
def _device() -> CudaDevice:
    return CudaDevice(0)


def checks() -> Sequence[Check]:
    return (
        *(Check(f"pixels of the CPU twin, {name}", functools.partial(_twin, spec)) for name, spec in _SPECS.items()),
        Check("nvImageCodec tells bad pictures one by one", _told_apart),
        Check("a bad picture costs its batch nothing", _recovery),
        Check("2,000 overlapped decodes, three times", _overlapped),
        Check("decode alone", _speed),
    )


def _decoder(spec: Preprocess, pool: ThreadPoolExecutor, *, batch: int = _BATCH) -> DeviceDecoder:
    options = DecodeOptions()
    return make_device_decoder(DecoderName.DALI, spec, options, _device(), pool, max_batch=batch, threads=_THREADS)


def _decoded(decoder: DeviceDecoder, spec: Preprocess, files: Sequence[bytes]) -> tuple[DeviceBatch, NDArray[Any]]:
    """A batch and its rows, from memory that is poisoned before."""
    device, shape = _device(), (len(files), *spec.size, 3)
    stream = device.new_stream("decode")
    staged, back = device.allocate_pinned(shape, np.uint8), device.allocate_pinned(shape, np.uint8)
    pixels = device.allocate(shape, np.uint8)
    back.fill(0xA5)
    prepared = decoder.prepare([Encoded(str(number), data) for number, data in enumerate(files)], staged)
    found: list[Any] = []

    def work() -> None:
        try:
            device.copy(pixels, back, stream=stream)
            found.append(decoder.start(prepared, staged, pixels, stream=stream))
            device.copy(back, pixels, stream=stream)
        except BaseException as error:  # raised below
            found.append(error)

    stream.submit(work)
    stream.synchronize()
    batch, rows = found[0], back.copy()
    if isinstance(batch, BaseException):
        raise batch
    batch.held.clear()
    stream.close()
    for buffer in (staged, back, pixels):
        device.release(buffer)
    return batch, rows[: len(batch)]


@functools.cache
def _turned_files() -> list[bytes]:
    """JPEGs of every EXIF turn, with whole and with halved chroma."""
    return [
        smooth_jpeg(2 * turn + subsampling, 320 + 16 * turn, 240, subsampling=subsampling, orientation=turn)
        for turn in range(1, 9)
        for subsampling in (0, 2)
    ]


def _twin(spec: Preprocess) -> Found:
    files = _turned_files()
    cpu = make_decoder(DecoderName.DALI, spec, DecodeOptions(), max_batch=len(files))
    samples = [Encoded(str(number), data) for number, data in enumerate(files)]
    wanted = cpu.decode(samples, np.empty((len(files), *spec.size, 3), np.uint8)).pixels
    with ThreadPoolExecutor(_THREADS) as pool, closing(_decoder(spec, pool)) as decoder:
        batch, rows = _decoded(decoder, spec, files)
    others = {decoded.decoder for decoded in batch.decoded} - {"dali-gpu"}
    if others or batch.failures:
        raise CheckFailedError(f"not all were decoded by the GPU: {others or batch.failures[0]}")
    differences = np.abs(rows.astype(int) - wanted).mean(axis=(1, 2, 3))
    if differences.max() > _MOST_DIFFERENCE:
        raise CheckFailedError(
            f"picture {int(differences.argmax())} differs by {differences.max():.2f} levels (mean), {_MOST_DIFFERENCE} "
            "are allowed"
        )
    return Found(f"{len(files)} pictures", {"largest_mean_difference_levels": float(differences.max())})


def _told_apart() -> Found:
    files = [smooth_jpeg(1, 320, 240), broken_jpeg(), smooth_jpeg(2, 500, 375), b"not a picture", broken_jpeg()]
    refused = PictureCheck(0).refused(files)
    if refused != [False, True, False, True, True]:
        raise CheckFailedError(f"expected pictures 1, 3 and 4 to be refused, found {refused}")
    return Found("3 of 5")


def _recovery() -> Found:
    """Bad pictures first, in the middle, last and several; the next batch must be right too."""
    spec = _SPECS["bilinear"]
    good = [smooth_jpeg(number, 320 + 8 * number, 240) for number in range(8)]
    with ThreadPoolExecutor(_THREADS) as pool, closing(_decoder(spec, pool)) as decoder:
        _, wanted = _decoded(decoder, spec, good)
        for places in ((0,), (4,), (8,), (0, 3, 9)):
            files = list(good)
            for place in places:
                files.insert(place, broken_jpeg())
            batch, rows = _decoded(decoder, spec, files)
            if [failure.id for failure in batch.failures] != [str(place) for place in places]:
                raise CheckFailedError(f"bad pictures at {places}: failures are {batch.failures}")
            if not np.array_equal(rows, wanted):
                raise CheckFailedError(f"bad pictures at {places} have changed the rows of others")
            if not np.array_equal(_decoded(decoder, spec, good)[1], wanted):
                raise CheckFailedError(f"the batch after bad pictures at {places} is not what it was before")
    return Found("4 batches with bad pictures; all other rows are bit-equal")


def _overlapped() -> Found:
    engine = LateAffineEngine(_device(), _SMALL)
    files = [smooth_jpeg(number, 200 + 8 * (number % 20), 160 + 4 * (number % 11)) for number in range(64)]
    make = functools.partial(_decoder, _SMALL, batch=_SOAK_BATCH)
    seconds = 0.0
    for _ in range(_SOAK_ROUNDS):
        found = overlapped_equals_alone(engine, make, samples_of(files), batches=_SOAK_BATCHES, batch=_SOAK_BATCH)
        seconds += found.numbers["wall_s"]
    return Found(f"{_SOAK_ROUNDS} x {found.detail}", {"wall_s": seconds})


def _speed() -> Found:
    spec = _SPECS["bilinear"]
    engine = LateAffineEngine(_device(), spec)
    lane = new_lane(engine, functools.partial(_decoder, spec), batch=_BATCH)
    rates = stage_rates(lane, samples_of(photo_sized_jpegs(_BATCH)), repeat=_REPEAT)
    return Found(
        "about 500 x 375 to 224 x 224",
        {"headers_samples_per_s": rates["read"], "decode_samples_per_s": rates["decode"]},
    )
