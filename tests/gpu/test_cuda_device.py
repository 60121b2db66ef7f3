"""The CUDA half of the device seam on a real GPU: order, copies, and that overlapping changes no number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from vdali.engine.cuda.device import CudaBuffer, CudaDevice
from vdali.engine.cuda.stream import CudaStream
from vdali.engine.device import HostStream
from vdali.engine.errors import DeviceError
from vdali.engine.scheduler import Scheduler
from vdali.engine.slots import BufferSpec, Lease, allocate_slots
from vdali.engine.stages import Lane, Role, Stage
from vdali.kernels.compile import compile_cubin

pytestmark = pytest.mark.gpu

ROWS, COLUMNS = 64, 3 * 32 * 32
BATCHES = 2000
POISON = 0xFF

SOURCE = """
// Waits `ticks` clock ticks, then out[i] = in[i] * 1.5f + i, so that what is overwritten too early is seen.
extern "C" __global__ void late_affine(const unsigned char* in, float* out, unsigned int n, long long ticks) {
    const long long start = clock64();
    while (clock64() - start < ticks) {}
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        out[i] = in[i] * 1.5f + i;
}
"""


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    device = CudaDevice(0)
    yield device
    device.close()


@pytest.fixture
def stream(device) -> Iterator[CudaStream]:
    stream = device.new_stream("stream")
    yield stream
    stream.close()


@pytest.fixture(scope="module")
def late_affine(device) -> Callable[..., None]:
    """Launches the kernel on a stream: ``late_affine(source, target, ticks, stream)``."""
    from cuda.core import Device, LaunchConfig, ObjectCode, Stream, launch

    core = Device(0)
    core.set_current()
    major, minor = core.compute_capability
    code = ObjectCode.from_cubin(compile_cubin(SOURCE, "late_affine.cu", f"sm_{major}{minor}"))
    kernel = code.get_kernel("late_affine")

    def run(source: CudaBuffer, target: CudaBuffer, ticks: int, stream: CudaStream) -> None:
        elements = source.nbytes
        config = LaunchConfig(grid=32, block=256)
        launch(
            Stream.from_handle(stream.handle),
            config,
            kernel,
            source.address,
            target.address,
            np.uint32(elements),
            np.int64(ticks),
        )

    return run


def pinned(device: CudaDevice, values: np.ndarray) -> np.ndarray:
    array = device.allocate_pinned(values.shape, values.dtype)
    array[...] = values
    return array


def expected_of(pixels: np.ndarray) -> np.ndarray:
    """Products of a byte and 1.5 are exact; the sum is rounded once, by a fused multiply-add or not."""
    return (pixels.reshape(-1) * np.float32(1.5) + np.arange(pixels.size, dtype=np.float32)).reshape(pixels.shape)


@cache
def pixels_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (ROWS, COLUMNS), dtype=np.uint8)


@pytest.mark.parametrize("shape", [(1,), (3, 5), (64, 224, 224, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_what_goes_to_the_gpu_comes_back(device, stream, shape, dtype):
    values = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)
    there, here = device.allocate(shape, dtype), pinned(device, values)
    back = pinned(device, np.zeros(shape, dtype))
    stream.submit(lambda: device.copy(there, here, stream=stream))
    stream.submit(lambda: device.copy(back, there, stream=stream))
    stream.synchronize()
    assert np.array_equal(back, values)
    for buffer in (there, here, back):
        device.release(buffer)


def test_a_stream_waits_for_the_event_of_another(device, stream, late_affine):
    other = device.new_stream("other")
    pixels = pixels_of(0)
    here, there = pinned(device, pixels), device.allocate(pixels.shape, np.uint8)
    result, back = device.allocate(pixels.shape, np.float32), pinned(device, np.zeros(pixels.shape, np.float32))
    other.submit(lambda: device.copy(there, here, stream=other))
    other.submit(lambda: late_affine(there, result, 100_000_000, other))  # some 50 ms
    stream.wait_for(other.record())
    stream.submit(lambda: device.copy(back, result, stream=stream))
    stream.record().wait()
    assert np.array_equal(back, expected_of(pixels))
    other.close()
    for buffer in (here, there, result, back):
        device.release(buffer)


def test_submitting_does_not_wait_for_the_gpu(device, stream, late_affine):
    there, result = device.allocate((ROWS, COLUMNS), np.uint8), device.allocate((ROWS, COLUMNS), np.float32)
    stream.submit(lambda: late_affine(there, result, 200_000_000, stream))
    event = stream.record()
    done_early: list[bool] = []
    stream.submit(lambda: done_early.append(_is_done(device, event)))
    stream.synchronize()
    assert done_early == [False]
    assert _is_done(device, event)
    for buffer in (there, result):
        device.release(buffer)


def _is_done(device: CudaDevice, event: Any) -> bool:
    runtime = device.cuda.runtime
    return bool(runtime.cudaEventQuery(event.handle)[0] == runtime.cudaError_t.cudaSuccess)


def test_memory_of_pytorch_is_viewed_in_place_and_in_order(device, stream):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch here was built without CUDA")
    tensor = torch.arange(12, dtype=torch.uint8, device="cuda").reshape(3, 4)
    back = pinned(device, np.zeros((3, 4), np.uint8))
    stream.submit(lambda: device.copy(back, device.view(tensor, stream=stream), stream=stream))
    stream.synchronize()
    assert np.array_equal(back, np.arange(12, dtype=np.uint8).reshape(3, 4))
    buffer = device.allocate((3, 4), np.uint8)
    stream.submit(lambda: device.copy(buffer, back, stream=stream))
    stream.synchronize()
    assert torch.equal(torch.as_tensor(buffer, device="cuda"), tensor)
    for each in (back, buffer):
        device.release(each)


def test_more_memory_than_there_is_gives_an_error_and_leaves_the_gpu_usable(device):
    with pytest.raises(DeviceError, match="cudaErrorMemoryAllocation"):
        device.allocate((1 << 50,), np.uint8)
    buffer = device.allocate((16,), np.uint8)
    device.release(buffer)


def lane_of(device: CudaDevice, late_affine: Callable[..., None], slots: int) -> Lane:
    """Lane that sends its batch's pixels up, computes with a random delay, poisons what it read, and brings it back."""
    host = {Role.READ, Role.FINISH}
    streams: dict[Role, Any] = {
        role: HostStream(role.value) if role in host else device.new_stream(role.value) for role in Role
    }
    poison = pinned(device, np.full((ROWS, COLUMNS), POISON, np.uint8))
    delays = np.random.default_rng(9).integers(0, 200_000, BATCHES)

    def read(number: int, lease: Lease) -> int:
        lease.buffers["encoded"][...] = pixels_of(number % 16)
        return number

    def decode(number: int, lease: Lease) -> int:
        device.copy(lease.buffers["pixels"], lease.buffers["encoded"], stream=streams[Role.IN])
        return number

    def infer(number: int, lease: Lease) -> int:
        stream = streams[Role.COMPUTE]
        late_affine(lease.buffers["pixels"], lease.buffers["outputs"], int(delays[number]), stream)
        device.copy(lease.buffers["pixels"], poison, stream=stream)
        return number

    def copy(number: int, lease: Lease) -> int:
        device.copy(lease.buffers["host"], lease.buffers["outputs"], stream=streams[Role.OUT])
        return number

    def finish(number: int, lease: Lease) -> np.ndarray:
        result = lease.buffers["host"].copy()
        lease.buffers["host"].fill(np.nan)
        return result

    stages = (
        Stage("read", Role.READ, read, takes=("encoded",)),
        Stage("decode", Role.IN, decode, takes=("pixels",), frees=("encoded",)),
        Stage("infer", Role.COMPUTE, infer, takes=("outputs",), frees=("pixels",)),
        Stage("copy", Role.OUT, copy, takes=("host",), frees=("outputs",)),
        Stage("finish", Role.FINISH, finish, frees=("host",)),
    )
    specs = {
        "encoded": BufferSpec((ROWS, COLUMNS), np.uint8, pinned=True),
        "pixels": BufferSpec((ROWS, COLUMNS), np.uint8),
        "outputs": BufferSpec((ROWS, COLUMNS), np.float32),
        "host": BufferSpec((ROWS, COLUMNS), np.float32, pinned=True),
    }
    return Lane(streams, stages, allocate_slots(device, specs, slots))


@pytest.mark.parametrize(("slots", "depth", "lanes"), [(1, 2, 1), (2, 4, 1), (2, 3, 2)])
def test_two_thousand_overlapped_batches_equal_the_synchronised_ones(device, late_affine, slots, depth, lanes):
    """Overlapped and one at a time, bit for bit, over buffers that are poisoned as soon as they are free."""
    alone = Scheduler([lane_of(device, late_affine, 1)], depth=1)
    expected = list(alone.run(range(16)))
    alone.close()
    assert np.array_equal(expected[3], expected_of(pixels_of(3)))
    overlapped = Scheduler([lane_of(device, late_affine, slots) for _ in range(lanes)], depth=depth)
    wrong = [
        number
        for number, result in enumerate(overlapped.run(range(BATCHES)))
        if not np.array_equal(result, expected[number % 16])
    ]
    overlapped.close()
    assert wrong == []
