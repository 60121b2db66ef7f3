"""The project's own kernels on this GPU against their references, between guards of poison."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.cuda.device import CudaDevice
from ...engine.cuda.kernels import CudaKernels, architecture_of
from ...kernels import mask_rle, resample
from ...kernels.launch import Launch
from ...kernels.mask_rle import MaskRlePlan, Runs, mask_rle_reference
from ...kernels.resample import FILTERS, Picture, ResamplePlan, plan_resample, resample_reference
from .pictures import smooth_pixels
from .record import Check, CheckFailedError, Found

_GUARD_BYTES, _POISON = 4096, 0xCD
_FILL = (10, 200, 30)
_REPEAT = 50


class _Bench:
    """Buffers between guards, and kernels launched on a stream."""

    def __init__(self) -> None:
        self.device = CudaDevice(0)
        self.stream = self.device.new_stream("kernels")
        self.resample = CudaKernels.from_file(self.device, resample.SOURCE, resample.OPTIONS)
        self.mask_rle = CudaKernels.from_file(self.device, mask_rle.SOURCE, mask_rle.OPTIONS)

    def run(self, kernels: CudaKernels, launches: Sequence[Launch], *, times: int = 1) -> float:
        """Seconds for all, from the first launch to the end on the GPU."""
        errors: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(times):
                    kernels.launch(launches, stream=self.stream)
            except BaseException as error:  # raised below
                errors.append(error)

        started = time.perf_counter()
        self.stream.submit(work)
        self.stream.synchronize()
        if errors:
            raise errors[0]
        return time.perf_counter() - started

    def upload(self, array: NDArray[Any], held: ExitStack) -> int:
        """Address of a copy with poison behind it."""
        content = np.concatenate((array.reshape(-1).view(np.uint8), np.full(_GUARD_BYTES, _POISON, np.uint8)))
        there, here = self.device.allocate(content.shape, np.uint8), self.device.allocate_pinned(content.shape, "u1")
        held.callback(self.device.release, there)
        here[...] = content
        self.stream.submit(lambda: self.device.copy(there, here, stream=self.stream))
        self.stream.synchronize()
        self.device.release(here)
        return there.address

    def poisoned(self, size: int, held: ExitStack) -> int:
        return self.upload(np.full(size, _POISON, np.uint8), held)

    def download(self, address: int, shape: tuple[int, ...], dtype: Any = np.uint8) -> NDArray[Any]:
        """What is at ``address``. Raises CheckFailedError where the guard behind it has changed."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        here = self.device.allocate_pinned((size + _GUARD_BYTES,), np.uint8)
        self.device.cuda.call(
            "cudaMemcpy",
            here.ctypes.data,
            address,
            here.nbytes,
            self.device.cuda.runtime.cudaMemcpyKind.cudaMemcpyDefault,
        )
        content = here.copy()
        self.device.release(here)
        if (content[size:] != _POISON).any():
            raise CheckFailedError(f"a kernel has written behind its buffer of {size:,} bytes")
        found: NDArray[Any] = content[:size].view(dtype).reshape(shape)
        return found


@functools.cache
def _bench() -> _Bench:
    return _Bench()


def checks() -> Sequence[Check]:
    return (
        Check("compiled for this GPU", lambda: Found(architecture_of(_bench().device))),
        *(Check(f"resample, {name}", functools.partial(_resampled, name)) for name in FILTERS),
        Check("mask_rle, class ids", functools.partial(_runs, binary=False)),
        Check("mask_rle, binary", functools.partial(_runs, binary=True)),
        Check("resample, speed", _resample_speed),
        Check("mask_rle, speed", _mask_speed),
    )


def _random_picture(rng: np.random.Generator, number: int, pointer: Callable[[NDArray[Any]], int]) -> Any:
    """Noise of a random size and turn, and how it is to be resized."""
    width, height = (int(side) for side in rng.integers(1, 90, 2))
    pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
    resized_width, resized_height = (int(side) for side in rng.integers(1, 60, 2))
    left, top = (int(offset) for offset in rng.integers(-12, 12, 2))
    turn = 1 + number % 8
    return pixels, Picture(pointer(pixels), width, height, 3 * width, turn, resized_width, resized_height, left, top)


def _resampled(interpolation: str) -> Found:
    rng = np.random.default_rng(1)
    worst = 0
    for _ in range(4):
        size = (int(rng.integers(1, 40)), int(rng.integers(1, 40)))
        with ExitStack() as held:
            cases = [_random_picture(rng, i, lambda array: _bench().upload(array, held)) for i in range(16)]
            plan = plan_resample([picture for _, picture in cases], *size, interpolation, _FILL)
            rows = _resample(plan, held)
        for row, (pixels, picture) in zip(rows, cases, strict=True):
            wanted = resample_reference(pixels, picture, *size, interpolation, _FILL)
            worst = max(worst, int(np.abs(row.astype(int) - wanted).max()))
    allowed = int(interpolation == "lanczos")  # CUDA's sin may differ from the C library's in the last bit
    if worst > allowed:
        raise CheckFailedError(f"up to {worst} levels from the reference, {allowed} are allowed")
    return Found("64 pictures, all turns", {"largest_difference_levels": worst})


def _resample(plan: ResamplePlan, held: ExitStack) -> NDArray[np.uint8]:
    bench, shape = _bench(), (len(plan.descriptors), plan.height, plan.width, 3)
    scratch, batch = bench.poisoned(plan.scratch_bytes, held), bench.poisoned(int(np.prod(shape)), held)
    bench.run(bench.resample, plan.launches(bench.upload(plan.descriptors, held), scratch, batch))
    bench.download(scratch, (plan.scratch_bytes,))
    return bench.download(batch, shape)


def _blobs(count: int, side: int, *, classes: int) -> NDArray[np.uint8]:
    """Masks with few and large regions, as models give them."""
    return smooth_pixels(count, side, seed=5)[..., 0] // (256 // classes)


def _runs(*, binary: bool) -> Found:
    rng = np.random.default_rng(3)
    checked = 0
    for shape in ((1, 1, 1), (3, 50, 1), (300, 9, 7), (8, 65, 129)):
        for masks in (rng.integers(0, 256, shape, np.uint8), (rng.random(shape) < 0.02).astype(np.uint8)):
            with ExitStack() as held:
                found = _mask_runs(masks, binary, held)
            for mask, runs in zip(masks, found, strict=True):
                wanted = mask_rle_reference(mask, binary)
                if not (
                    np.array_equal(runs.positions, wanted.positions) and np.array_equal(runs.values, wanted.values)
                ):
                    raise CheckFailedError(f"a mask of {list(shape)} has other runs than the reference")
                checked += 1
    return Found(f"{checked} masks")


def _mask_runs(masks: NDArray[np.uint8], binary: bool, held: ExitStack) -> list[Runs]:
    bench = _bench()
    count, height, width = masks.shape
    plan = MaskRlePlan(count, height, width, binary, masks.size)
    totals, positions, values = (bench.poisoned(size, held) for size in (4 * plan.count, 4 * masks.size, masks.size))
    scratch = bench.poisoned(plan.scratch_bytes, held)
    bench.run(bench.mask_rle, plan.launches(bench.upload(masks, held), scratch, totals, positions, values))
    return plan.split(
        bench.download(totals, (plan.count,), np.int32),
        bench.download(positions, (masks.size,), np.int32),
        bench.download(values, (masks.size,)),
    )


def _resample_speed() -> Found:
    rng = np.random.default_rng(2)
    numbers: dict[str, float] = {}
    for width, height, count in ((500, 375, 64), (4000, 3000, 16)):
        with ExitStack() as held:
            source = _bench().upload(rng.integers(0, 256, (height, width, 3), np.uint8), held)
            wide = 256 * width // height
            picture = Picture(source, width, height, 3 * width, 1, wide, 256, (wide - 224) // 2, 16)
            plan = plan_resample([picture] * count, 224, 224, "bilinear", _FILL)
            scratch, batch = _bench().poisoned(plan.scratch_bytes, held), _bench().poisoned(count * 224 * 224 * 3, held)
            launches = plan.launches(_bench().upload(plan.descriptors, held), scratch, batch)
            _bench().run(_bench().resample, launches)
            seconds = _bench().run(_bench().resample, launches, times=_REPEAT)
        numbers[f"from_{width}x{height}_samples_per_s"] = count * _REPEAT / seconds
    return Found("bilinear, to 256, crop 224", numbers)


def _mask_speed() -> Found:
    masks = _blobs(32, 513, classes=8)
    count, height, width = masks.shape
    plan = MaskRlePlan(count, height, width, binary=False, capacity=masks.size // 5)
    with ExitStack() as held:
        bench = _bench()
        totals, positions, values = (
            bench.poisoned(size, held) for size in (4 * plan.count, 4 * plan.capacity, plan.capacity)
        )
        launches = plan.launches(
            bench.upload(masks, held), bench.poisoned(plan.scratch_bytes, held), totals, positions, values
        )
        bench.run(bench.mask_rle, launches)
        seconds = bench.run(bench.mask_rle, launches, times=_REPEAT)
        runs = int(bench.download(totals, (plan.count,), np.int32).sum())
    return Found(
        "32 masks of 513 x 513",
        {"samples_per_s": 32 * _REPEAT / seconds, "times_smaller_than_pixels": masks.nbytes / (5 * runs)},
    )
