"""The kernels' cubins on a real GPU, against the same references as on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from vdali.kernels import mask_rle, resample
from vdali.kernels.compile import compile_file
from vdali.kernels.launch import Launch
from vdali.kernels.mask_rle import MaskRlePlan, Runs, mask_rle_reference
from vdali.kernels.resample import FILTERS, PICTURE_DTYPE, plan_resample, resample_reference

from .test_mask_rle import blobs
from .test_resample import FILL, random_case

pytestmark = pytest.mark.gpu

GUARD = 4096  # bytes of poison after each buffer; none may change
POISON = 0xCD


class Gpu:
    """Device 0: its kernels, and buffers that live as long as this."""

    def __init__(self) -> None:
        from cuda.bindings import runtime
        from cuda.core import Device, ObjectCode, StreamOptions

        device = Device(0)
        device.set_current()
        self._runtime = runtime
        self._stream = device.create_stream(options=StreamOptions(nonblocking=True))
        major, minor = device.compute_capability
        self._kernels: dict[str, Any] = {}
        for module, names in (
            (resample, ("resample_taps", "resample_first_pass", "resample_second_pass")),
            (mask_rle, ("mask_rle_count", "mask_rle_offsets", "mask_rle_write")),
        ):
            code = ObjectCode.from_cubin(compile_file(module.SOURCE, f"sm_{major}{minor}", module.OPTIONS))
            self._kernels |= {name: code.get_kernel(name) for name in names}
        self._held = ExitStack()

    def _checked(self, answer: tuple[Any, ...]) -> Any:
        assert answer[0] == self._runtime.cudaError_t.cudaSuccess, answer[0]
        return answer[1] if len(answer) > 1 else None

    def upload(self, array: np.ndarray) -> int:
        """Address of a copy of ``array`` on the device, with poison after it."""
        content = np.concatenate((array.reshape(-1).view(np.uint8), np.full(GUARD, POISON, np.uint8)))
        address = int(self._checked(self._runtime.cudaMalloc(content.nbytes)))
        self._held.callback(self._runtime.cudaFree, address)
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._checked(self._runtime.cudaMemcpy(address, content.ctypes.data, content.nbytes, kind))
        return address

    def poisoned(self, size: int) -> int:
        return self.upload(np.full(size, POISON, np.uint8))

    def download(self, address: int, shape: tuple[int, ...], dtype: type = np.uint8) -> np.ndarray:
        """What is at ``address``; fails where the poison after it has changed."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        content = np.empty(size + GUARD, np.uint8)
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._checked(self._runtime.cudaMemcpy(content.ctypes.data, address, content.nbytes, kind))
        assert (content[size:] == POISON).all()
        return content[:size].view(dtype).reshape(shape)

    def run(self, launches: Sequence[Launch]) -> None:
        from cuda.core import LaunchConfig, launch

        self._checked(self._runtime.cudaDeviceSynchronize())  # a copy from pageable memory may still be under way
        for one in launches:
            config = LaunchConfig(grid=one.grid, block=one.block)
            launch(self._stream, config, self._kernels[one.kernel], *one.arguments)
        self._stream.sync()

    def close(self) -> None:
        self._held.close()
        self._stream.close()


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    gpu = Gpu()
    yield gpu
    gpu.close()


@pytest.mark.parametrize("interpolation", FILTERS)
def test_random_pictures_equal_the_reference(gpu: Gpu, interpolation: str) -> None:
    random = np.random.default_rng(1)
    for _ in range(6):
        size = (int(random.integers(1, 40)), int(random.integers(1, 40)))
        cases = [random_case(random, number, size) for number in range(16)]
        pictures = [dataclasses.replace(picture, pointer=gpu.upload(source)) for _, source, picture in cases]
        plan = plan_resample(pictures, *size, interpolation, FILL)
        scratch, batch = gpu.poisoned(plan.scratch_bytes), gpu.poisoned(len(pictures) * size[0] * size[1] * 3)
        gpu.run(plan.launches(gpu.upload(plan.descriptors), scratch, batch))
        gpu.download(scratch, (plan.scratch_bytes,))
        rows = gpu.download(batch, (len(pictures), *size, 3))
        for row, (pixels, _, picture) in zip(rows, cases, strict=True):
            wanted = resample_reference(pixels, picture, *size, interpolation, FILL)
            difference = np.abs(row.astype(int) - wanted.astype(int))
            if interpolation == "lanczos":  # CUDA's sin may differ from the C library's in the last bit
                assert difference.max() <= 1
                assert difference.mean() < 0.01
            else:
                assert difference.max() == 0, str(picture)


def test_a_batch_of_photo_sizes_is_the_same_each_time(gpu: Gpu) -> None:
    random = np.random.default_rng(2)
    sizes = [(500, 375), (375, 500), (4000, 3000), (224, 224), (1, 1)] * 13
    pictures = []
    for number, (width, height) in enumerate(sizes):
        pixels = random.integers(0, 256, (height, width, 3), np.uint8)
        pictures.append(
            resample.Picture(gpu.upload(pixels), width, height, 3 * width, 1 + number % 8, 256, 256, 16, 16)
        )
    plan = plan_resample(pictures, 224, 224, "bicubic", FILL)
    assert plan.descriptors.dtype == PICTURE_DTYPE
    descriptors, scratch = gpu.upload(plan.descriptors), gpu.poisoned(plan.scratch_bytes)
    shape = (len(pictures), 224, 224, 3)
    batch = gpu.poisoned(int(np.prod(shape)))
    gpu.run(plan.launches(descriptors, scratch, batch))
    first = gpu.download(batch, shape)
    for _ in range(20):
        again = gpu.poisoned(int(np.prod(shape)))
        gpu.run(plan.launches(descriptors, scratch, again))
        np.testing.assert_array_equal(gpu.download(again, shape), first)


def runs_on(gpu: Gpu, masks: np.ndarray, binary: bool, capacity: int) -> list[Runs]:
    plan = MaskRlePlan(*masks.shape, binary, capacity)
    totals, positions, values = gpu.poisoned(4 * plan.count), gpu.poisoned(4 * capacity), gpu.poisoned(capacity)
    gpu.run(plan.launches(gpu.upload(masks), gpu.poisoned(plan.scratch_bytes), totals, positions, values))
    return plan.split(
        gpu.download(totals, (plan.count,), np.int32),
        gpu.download(positions, (capacity,), np.int32),
        gpu.download(values, (capacity,)),
    )


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 50, 1), (300, 9, 7), (8, 65, 129)])
def test_runs_equal_the_reference(gpu: Gpu, shape: tuple[int, int, int], binary: bool) -> None:
    random = np.random.default_rng(3)
    for masks in (blobs(random, *shape, classes=3), random.integers(0, 256, shape, np.uint8)):
        for mask, runs in zip(masks, runs_on(gpu, masks, binary, masks.size), strict=True):
            wanted = mask_rle_reference(mask, binary)
            np.testing.assert_array_equal(runs.positions, wanted.positions)
            np.testing.assert_array_equal(runs.values, wanted.values)


def test_too_small_a_capacity_is_said_and_nothing_is_written_past_it(gpu: Gpu) -> None:
    masks = blobs(np.random.default_rng(4), 3, 20, 30, classes=4)
    with pytest.raises(ValueError, match="room for 10"):
        runs_on(gpu, masks, False, 10)
