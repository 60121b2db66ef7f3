"""The device seam: what holds alike on the host and on a GPU, here a played one."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from vdali.engine.cuda.device import CudaDevice
from vdali.engine.device import HostDevice
from vdali.engine.errors import DeviceError


@pytest.fixture(params=["host", "cuda"])
def device(request, runtime):
    device = HostDevice() if request.param == "host" else CudaDevice(0, runtime=runtime)
    yield device
    device.close()


@pytest.fixture
def stream(device):
    stream = device.new_stream("stream")
    yield stream
    stream.close()


def pinned(device, values) -> np.ndarray:
    values = np.asarray(values)
    array = device.allocate_pinned(values.shape, values.dtype)
    array[...] = values
    return array


def test_a_stream_runs_its_work_in_order(stream):
    done: list[int] = []
    for number in range(100):
        stream.submit(lambda number=number: done.append(number))
    stream.synchronize()
    assert done == list(range(100))


def test_nothing_behind_an_event_starts_before_it_is_passed(device, stream):
    other = device.new_stream("other")
    gate, trace = threading.Event(), []
    other.submit(lambda: (gate.wait(10), trace.append("before")))
    stream.wait_for(other.record())
    stream.submit(lambda: trace.append("behind"))
    assert trace == []
    gate.set()
    stream.synchronize()
    assert trace == ["before", "behind"]
    other.close()


def test_copies_go_to_the_device_and_back_in_the_order_of_the_stream(device, stream):
    first, second = pinned(device, np.arange(12, dtype=np.float32).reshape(4, 3)), pinned(device, np.ones((4, 3), "f4"))
    there, back = device.allocate((4, 3), np.float32), device.allocate_pinned((4, 3), np.float32)
    expected = first.copy()
    stream.submit(lambda: device.copy(there, first, stream=stream))
    stream.submit(lambda: device.copy(there[:2], second[:2], stream=stream))
    stream.submit(lambda: device.copy(back, there, stream=stream))
    stream.synchronize()
    expected[:2] = 1
    assert np.array_equal(back, expected)
    for buffer in (first, second, there, back):
        device.release(buffer)


def test_an_event_that_the_work_marked_itself_is_passed_at_that_point(device, stream):
    gate = threading.Event()
    event = stream.new_event()
    stream.submit(event.mark)
    stream.submit(lambda: gate.wait(10))
    stream.record(event)
    event.wait()
    assert not gate.is_set()
    gate.set()


def test_waiting_for_a_broken_event_breaks_the_stream_and_not_its_thread():
    class BrokenEvent:
        def wait(self) -> None:
            raise DeviceError("The device is gone.")

        def mark(self) -> None: ...

    stream = HostDevice().new_stream("host")
    done = []
    stream.wait_for(BrokenEvent())
    stream.submit(lambda: done.append(1))
    with pytest.raises(DeviceError, match="gone"):
        stream.synchronize()
    assert done == [1]
    stream.close()


def test_the_host_copies_no_other_dtype():
    with pytest.raises(TypeError):
        HostDevice().copy(np.zeros(2, np.uint8), np.zeros(2, np.float32), stream=HostDevice().new_stream("host"))
