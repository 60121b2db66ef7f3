"""Streams and memory of other libraries, taken by protocol onto a GPU that is played."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from fake_cuda import FakeDlpackArray
from vdali.engine.cuda.foreign import stream_handle


def test_a_stream_is_taken_by_protocol(cuda):
    stream = cuda.new_stream("stream")
    assert stream_handle(stream) == stream.handle
    assert stream_handle(SimpleNamespace(__cuda_stream__=(0, 4711))) == 4711
    assert stream_handle(SimpleNamespace(__cuda_stream__=lambda: (0, 4711))) == 4711
    stream.close()


@pytest.mark.parametrize(
    ("stream", "error", "message"),
    [
        (object(), TypeError, "object has no __cuda_stream__"),
        (SimpleNamespace(__cuda_stream__=(1, 4711)), TypeError, "version 1, 0 is known"),
        (SimpleNamespace(__cuda_stream__=(0, 0)), ValueError, "is the default stream"),
        (SimpleNamespace(__cuda_stream__=(0, 1)), ValueError, "legacy default stream"),
        (SimpleNamespace(__cuda_stream__=(0, 2)), ValueError, "per-thread default stream"),
    ],
)
def test_a_stream_of_another_kind_is_refused(stream, error, message):
    with pytest.raises(error, match=message):
        stream_handle(stream)


def test_memory_of_another_library_is_viewed_in_place_by_dlpack(cuda):
    stream = cuda.new_stream("stream")
    foreign = FakeDlpackArray(cuda.allocate((4, 3), np.uint8).address, (4, 3))
    view = cuda.view(foreign, stream=stream)
    assert view.__cuda_array_interface__["data"] == (foreign._tensor.data, False)
    assert (view.shape, view.dtype) == ((4, 3), np.uint8)
    assert foreign.stream == stream.handle  # its owner orders this stream behind its own work
    stream.close()


def test_memory_of_another_library_is_used_only_behind_the_stream_it_names(runtime, cuda):
    stream, theirs = cuda.new_stream("stream"), cuda.new_stream("theirs")
    buffer, back = cuda.allocate((4,), np.uint8), cuda.allocate_pinned((4,), np.uint8)
    interface = buffer.__cuda_array_interface__ | {"stream": theirs.handle}
    runtime.enqueue(theirs.handle, lambda: runtime.array(buffer).fill(9))
    view = cuda.view(SimpleNamespace(__cuda_array_interface__=interface), stream=stream)
    cuda.copy(back, view, stream=stream)
    stream.synchronize()
    assert back.tolist() == [9] * 4
    stream.close()
    theirs.close()


@pytest.mark.parametrize(
    ("foreign", "error", "message"),
    [
        (lambda address: object(), TypeError, "neither DLPack nor"),
        (lambda address: np.zeros((2, 2), np.uint8), ValueError, r"DLPack device \(1, 0\), not on cuda:0"),
        (lambda address: FakeDlpackArray(address, (2, 2), ordinal=1), ValueError, r"DLPack device \(2, 1\)"),
        (lambda address: FakeDlpackArray(address, (2, 2), (1, 2)), ValueError, r"strides \[1, 2\], dense would be"),
        (lambda address: array_of(address, strides=(1, 2)), ValueError, "Make it contiguous"),
        (lambda address: array_of(np.zeros(4, np.uint8).ctypes.data), ValueError, "is not on cuda:0"),
    ],
)
def test_memory_that_is_elsewhere_or_not_dense_is_refused(cuda, foreign, error, message):
    stream = cuda.new_stream("stream")
    address = cuda.allocate((2, 2), np.uint8).address
    with pytest.raises(error, match=message):
        cuda.view(foreign(address), stream=stream)
    stream.close()


def array_of(address: int, strides: tuple[int, ...] | None = None) -> SimpleNamespace:
    interface = {"shape": (2, 2), "typestr": "|u1", "data": (address, False), "strides": strides, "version": 2}
    return SimpleNamespace(__cuda_array_interface__=interface)


def test_strides_of_axes_of_one_do_not_matter(cuda):
    stream = cuda.new_stream("stream")
    view = cuda.view(FakeDlpackArray(cuda.allocate((1, 3), np.uint8).address, (1, 3), (99, 1)), stream=stream)
    assert view.shape == (1, 3)
    stream.close()
