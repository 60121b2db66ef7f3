"""The CUDA half of the device seam, on a runtime that plays the GPU."""

from __future__ import annotations

import inspect
import threading

import numpy as np
import pytest
from cuda.bindings import runtime as real
from fake_cuda import FakeCudaRuntime, FakeDlpackArray
from vdali.engine.cuda.calls import CONTEXT_LOST
from vdali.engine.cuda.device import CudaDevice
from vdali.engine.device import HostDevice
from vdali.engine.errors import DeviceError
from vdali.engine.gpu_probe import probe_gpu
from vdali.engine.scheduler import Scheduler
from vdali.engine.slots import BufferSpec, allocate_slots
from vdali.engine.stages import Lane, Role, Stage

OUT_OF_MEMORY = real.cudaError_t.cudaErrorMemoryAllocation
ILLEGAL_ADDRESS = real.cudaError_t.cudaErrorIllegalAddress


def pinned(device, values) -> np.ndarray:
    array = device.allocate_pinned(values.shape, values.dtype)
    array[...] = values
    return array


def test_without_a_gpu_the_device_says_so_and_what_to_do():
    if probe_gpu().count:
        pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceError, match=r"^No device 'cuda:0': no .*Use --device cpu, or run `vdali doctor`\.$"):
        CudaDevice(0)


def test_the_faked_calls_have_the_parameters_of_the_real_ones():
    calls = [name for name in vars(FakeCudaRuntime) if name.startswith("cuda")]
    assert len(calls) > 20
    for name in calls:
        first_line = getattr(real, name).__doc__.split("\n")[0]
        words = first_line[len(name) + 1 : -1].split(", ") if not first_line.endswith("()") else []
        expected = [word.split(":")[0].split()[-1] for word in words]
        assert list(inspect.signature(getattr(FakeCudaRuntime, name)).parameters)[1:] == expected, name


def test_the_real_calls_take_the_arguments_that_the_device_gives_them(runtime):
    if probe_gpu().count or real.cudaDriverGetVersion()[1]:
        pytest.skip("this machine has a driver, which would follow addresses made up here")
    device = CudaDevice(0, runtime=runtime)
    stream = device.new_stream("stream")
    there, here = device.allocate((4,), np.uint8), device.allocate_pinned((4,), np.uint8)
    stream.submit(lambda: device.copy(there, here, stream=stream))
    other = device.new_stream("other")
    other.wait_for(stream.record())
    other.submit(lambda: device.view(FakeDlpackArray(there.address, (4,)), stream=other))
    other.record().wait()
    for buffer in (there, here):
        device.release(buffer)
    for each in (stream, other, device):
        each.close()
    CudaDevice(1, runtime=runtime).close()
    assert len(runtime.calls) > 15
    for name, arguments in runtime.calls.items():
        status = getattr(real, name)(*arguments)[0]
        assert status == real.cudaError_t.cudaErrorInsufficientDriver, name


def test_the_statuses_that_mean_a_lost_context_exist():
    assert {name for name in CONTEXT_LOST if not hasattr(real.cudaError_t, name)} == set()


def test_nothing_is_copied_before_somebody_waits(runtime, cuda):
    stream = cuda.new_stream("stream")
    there, here = cuda.allocate((4,), np.uint8), pinned(cuda, np.arange(4, dtype=np.uint8))
    launched = threading.Event()
    stream.submit(lambda: cuda.copy(there, here, stream=stream))
    stream.submit(launched.set)
    assert launched.wait(10)
    assert runtime.copies == 0
    stream.record().wait()
    assert runtime.copies == 1
    stream.close()


def test_a_wait_for_an_event_that_is_recorded_later_is_still_a_wait(runtime, cuda):
    """CUDA takes a wait for an event that is not recorded yet as none at all."""
    first, second = cuda.new_stream("first"), cuda.new_stream("second")
    trace, gate = [], threading.Event()
    first.submit(lambda: gate.wait(10))
    first.submit(lambda: runtime.enqueue(first.handle, lambda: trace.append("first")))
    second.wait_for(first.record())
    second.submit(lambda: runtime.enqueue(second.handle, lambda: trace.append("second")))
    gate.set()
    second.synchronize()
    assert trace == ["first", "second"]
    first.close()
    second.close()


def test_an_event_that_the_work_recorded_is_passed_before_what_follows_in_the_same_work(runtime, cuda):
    """As TensorRT does: the input is free before the outputs are there."""
    stream = cuda.new_stream("stream")
    trace, event = [], stream.new_event()

    def work() -> None:
        runtime.enqueue(stream.handle, lambda: trace.append("input read"))
        runtime.cudaEventRecord(event.handle, stream.handle)
        event.mark()
        runtime.enqueue(stream.handle, lambda: trace.append("outputs written"))

    stream.submit(work)
    stream.record(event)
    event.wait()
    assert trace == ["input read"]
    stream.close()


def test_an_event_that_could_not_be_recorded_breaks_all_that_wait_for_it(runtime, cuda):
    first, second = cuda.new_stream("first"), cuda.new_stream("second")
    runtime.fails["cudaEventRecord"] = iter([real.cudaError_t.cudaErrorInvalidResourceHandle])
    event = first.record()
    second.wait_for(event)
    with pytest.raises(DeviceError, match="cudaEventRecord failed"):
        event.wait()
    for stream in (first, second):
        with pytest.raises(DeviceError, match="cudaEventRecord failed"):
            stream.synchronize()
        stream.close()


def test_events_are_used_again(runtime, cuda):
    stream = cuda.new_stream("stream")
    for _ in range(200):
        stream.record().wait()
    stream.close()
    assert len(runtime.events) < 20


def test_too_little_memory_is_an_error_that_says_what_to_lower(runtime, cuda):
    runtime.fails["cudaMallocFromPoolAsync"] = iter([OUT_OF_MEMORY])
    with pytest.raises(
        DeviceError, match="cudaMallocFromPoolAsync failed on cuda:0: cudaErrorMemoryAllocation, out of"
    ):
        cuda.allocate((1 << 30,), np.uint8)
    assert runtime.last_error == real.cudaError_t.cudaSuccess  # forgotten, so that no other library meets it
    assert cuda.allocate((4,), np.uint8).nbytes == 4


def test_slots_that_do_not_all_fit_leave_nothing_behind(runtime, cuda):
    specs = {"pixels": BufferSpec((4, 2), np.uint8), "host": BufferSpec((4,), np.float32, pinned=True)}
    slots = allocate_slots(cuda, specs, 2)
    assert len(runtime.memory) == 4
    for slot in slots:
        slot.close()
    runtime.fails["cudaHostAlloc"] = iter([None, None, OUT_OF_MEMORY])
    with pytest.raises(DeviceError, match="cudaHostAlloc"):
        allocate_slots(cuda, specs, 4)
    cuda.allocate((1,), np.uint8)  # waits for the frees that are in order before it
    assert len(runtime.memory) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda cuda: (cuda.allocate((2, 2), "u1"), np.zeros((2, 2), "u1")), "not dense pinned memory"),
        (lambda cuda: (cuda.allocate((2, 2), "u1"), pinned(cuda, np.zeros((2, 4), "u1"))[:, ::2]), "not dense pinned"),
        (lambda cuda: (cuda.allocate((2, 2), "u1"), pinned(cuda, np.zeros((2, 2), "i1"))), "does not fit"),
        (lambda cuda: (cuda.allocate((2, 2), "u1"), pinned(cuda, np.zeros((3, 2), "u1"))), "does not fit"),
    ],
)
def test_a_copy_that_would_wait_or_not_fit_is_refused(cuda, make, message):
    stream = cuda.new_stream("stream")
    with pytest.raises(ValueError, match=message):
        cuda.copy(*make(cuda), stream=stream)
    stream.close()


def test_rows_of_a_buffer_are_a_view_and_a_step_is_refused(cuda):
    buffer = cuda.allocate((5, 2, 3), np.float32)
    part = buffer[1:3]
    assert (part.address, part.shape, part.nbytes) == (buffer.address + 24, (2, 2, 3), 48)
    assert (len(buffer[4:2]), buffer[:9].shape) == (0, (5, 2, 3))
    with pytest.raises(ValueError, match="step 2"):
        buffer[::2]


def test_memory_is_released_once_and_in_order(runtime, cuda):
    stream = cuda.new_stream("stream")
    scratch, back = [], pinned(cuda, np.zeros(4, np.uint8))

    def work() -> None:
        buffer = cuda.allocate((4,), np.uint8, stream=stream)
        scratch.append(buffer)
        runtime.enqueue(stream.handle, lambda: runtime.array(buffer).fill(7))
        cuda.copy(back, buffer, stream=stream)
        cuda.release(buffer, stream=stream)

    stream.submit(work)
    stream.synchronize()
    assert back.tolist() == [7] * 4
    with pytest.raises(ValueError, match="Release each once"):
        cuda.release(scratch[0])
    stream.close()


def test_empty_memory_can_be_had_and_released(cuda):
    for buffer in (cuda.allocate((0, 3), np.float32), cuda.allocate_pinned((0, 3), np.float32)):
        assert (buffer.shape, buffer.nbytes) == ((0, 3), 0)
        cuda.release(buffer)


def test_another_gpu_is_current_only_where_it_has_to_be(runtime):
    device = CudaDevice(1, runtime=runtime)
    stream = device.new_stream("stream")
    seen: list[int] = []
    stream.submit(lambda: seen.append(runtime.cudaGetDevice()[1]))
    stream.record().wait()
    stream.synchronize()
    assert seen == [1]
    assert runtime.cudaGetDevice()[1] == 0
    stream.close()
    device.close()


def cuda_lane(device, runtime, slots: int) -> Lane:
    """Lane whose batch, a number, goes to the device, is squared there by a kernel, and comes back."""
    streams = {
        role: (HostDevice() if role in (Role.READ, Role.FINISH) else device).new_stream(role.value) for role in Role
    }

    def decode(value, lease):
        lease.buffers["host_in"][...] = value
        device.copy(lease.buffers["there"], lease.buffers["host_in"], stream=streams[Role.IN])
        return value

    def infer(value, lease):
        source, target = lease.buffers["there"], lease.buffers["result"]

        def kernel() -> None:
            content = runtime.array(source)
            runtime.array(target)[...] = content.astype(np.int64) ** 2
            content.fill(0xFF)

        runtime.enqueue(streams[Role.COMPUTE].handle, kernel)
        return value

    def copy(value, lease):
        device.copy(lease.buffers["host_out"], lease.buffers["result"], stream=streams[Role.OUT])
        return value

    def finish(value, lease):
        result = lease.buffers["host_out"].copy()
        lease.buffers["host_out"].fill(-1)
        return value, result

    specs = {
        "host_in": BufferSpec((8,), np.int32, pinned=True),
        "there": BufferSpec((8,), np.int32),
        "result": BufferSpec((8,), np.int64),
        "host_out": BufferSpec((8,), np.int64, pinned=True),
    }
    stages = (
        Stage("read", Role.READ, lambda value, _: value, takes=("host_in",)),
        Stage("decode", Role.IN, decode, takes=("there",), frees=("host_in",)),
        Stage("infer", Role.COMPUTE, infer, takes=("result",), frees=("there",)),
        Stage("copy", Role.OUT, copy, takes=("host_out",), frees=("result",)),
        Stage("finish", Role.FINISH, finish, frees=("host_out",)),
    )
    return Lane(streams, stages, allocate_slots(device, specs, slots))


@pytest.mark.parametrize(("slots", "depth"), [(1, 1), (1, 3), (2, 4)])
def test_overlapped_batches_on_a_lazy_gpu_are_all_their_own(runtime, cuda, slots, depth):
    scheduler = Scheduler([cuda_lane(cuda, runtime, slots)], depth=depth)
    for number, (value, result) in enumerate(scheduler.run(range(60))):
        assert value == number
        assert result.tolist() == [number * number] * 8
    scheduler.close()
    cuda.allocate((1,), np.uint8)
    assert len(runtime.memory) == 1  # all slots were given back


def test_a_gpu_that_is_lost_ends_the_run_with_its_error_and_hangs_nobody(runtime):
    device = CudaDevice(0, runtime=runtime)
    scheduler = Scheduler([cuda_lane(device, runtime, 2)], depth=4)
    results = scheduler.run(range(1000))
    assert next(results)[0] == 0
    runtime.lost = ILLEGAL_ADDRESS
    with pytest.raises(
        DeviceError, match=r"cudaErrorIllegalAddress.*can no longer use the GPU\. Start the same"
    ) as told:
        list(results)
    assert told.value.exit_status == 4
    scheduler.close()
    device.close()
