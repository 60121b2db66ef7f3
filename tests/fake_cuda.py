"""The CUDA runtime without a GPU: memory of the host, and streams that do nothing before somebody waits for them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from functools import wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda.bindings import runtime as real
from lazy_queues import LazyQueues

POISON = 0xCD
SUCCESS = real.cudaError_t.cudaSuccess
NAMELESS = (1, 2)
"""Handles of the default streams that have one."""


def faked(function):
    """A call of the runtime: one at a time, remembered, and failing where it was told to."""

    @wraps(function)
    def call(self: FakeCudaRuntime, *arguments: Any) -> tuple[Any, ...]:
        with self._lock:
            self.calls[function.__name__] = arguments
            status = self.lost or next(self.fails.get(function.__name__, iter(())), None)
            if status is not None:
                self.last_error = status
                if function.__name__ == "cudaStreamEndCapture":
                    self.captures.pop(arguments[0])  # one that fails ends too
                return (status,)
            answer = function(self, *arguments)
            if self.lost is not None:
                return (self.lost,)
            return (SUCCESS,) if answer is None else (SUCCESS, answer)

    return call


class FakeCudaRuntime:
    """Stands in for ``cuda.bindings.runtime``, whose constants and types it has.

    ``calls`` holds the last arguments of each function; ``fails`` the statuses that a function gives the
    next times, None for success; ``lost`` the status that everything gives from now on, as after an illegal access.
    ``launches`` counts the graphs that were launched.
    """

    def __init__(self) -> None:
        self.calls: dict[str, tuple[Any, ...]] = {}
        self.fails: dict[str, Iterator[Any]] = {}
        self.lost: Any = None
        self.last_error: Any = SUCCESS
        self.memory: dict[int, np.ndarray] = {}
        self.on_device: set[int] = set()
        self.events: dict[int, Any] = {}
        self.queues: dict[int, int] = {}
        self.pools: set[int] = set()
        self.copies = 0
        self.attributes = {"cudaDevAttrComputeCapabilityMajor": 9, "cudaDevAttrComputeCapabilityMinor": 0}
        self.launches = 0
        self.captures: dict[int, list[Any]] = {}
        self.graphs: dict[int, list[Any]] = {}
        self._lazy = LazyQueues()
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._next = 0x1000

    def __getattr__(self, name: str) -> Any:
        value = getattr(real, name)
        if type(value).__name__ == "cython_function_or_method":
            raise AttributeError(f"{name} is not faked")
        return value

    def handle(self) -> int:
        self._next += 16
        return self._next

    @faked
    def cudaGetDevice(self) -> int:
        return getattr(self._thread, "ordinal", 0)

    @faked
    def cudaSetDevice(self, device: int) -> None:
        self._thread.ordinal = device

    @faked
    def cudaStreamCreateWithFlags(self, flags: int) -> int:
        assert flags == real.cudaStreamNonBlocking
        stream = self.handle()
        self.queues[stream] = self._lazy.new()
        return stream

    @faked
    def cudaStreamDestroy(self, stream: int) -> None:
        self._lazy.finish_all_of(self.queues.pop(stream))

    @faked
    def cudaStreamSynchronize(self, stream: int) -> None:
        self._lazy.finish_all_of(self.queues[stream])

    @faked
    def cudaStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        if self.events[event] is not None:  # CUDA too takes one that was never recorded as passed
            self._lazy.wait(self.queues[stream], self.events[event])

    @faked
    def cudaEventCreateWithFlags(self, flags: int) -> int:
        event = self.handle()
        self.events[event] = None
        return event

    @faked
    def cudaEventRecord(self, event: int, stream: int) -> None:
        assert stream not in self.captures, "an event that is captured cannot be waited for outside"
        self.events[event] = self._lazy.record(self.queues[stream])

    @faked
    def cudaEventSynchronize(self, event: int) -> None:
        if self.events[event] is not None:
            self._lazy.finish(self.events[event])

    @faked
    def cudaEventDestroy(self, event: int) -> None:
        del self.events[event]

    @faked
    def cudaMemPoolCreate(self, poolProps: Any) -> int:
        pool = self.handle()
        self.pools.add(pool)
        return pool

    @faked
    def cudaMemPoolSetAttribute(self, memPool: int, attr: Any, value: Any) -> None:
        assert memPool in self.pools

    @faked
    def cudaMemPoolDestroy(self, memPool: int) -> None:
        self.pools.remove(memPool)

    @faked
    def cudaMallocFromPoolAsync(self, size: int, memPool: int, stream: int) -> int:
        assert memPool in self.pools
        assert stream in self.queues
        address = self._allocate(size)
        self.on_device.add(address)
        return address

    @faked
    def cudaFreeAsync(self, devPtr: int, hStream: int) -> None:
        assert devPtr in self.on_device
        self._lazy.add(self.queues[hStream], lambda: self._free(devPtr))

    @faked
    def cudaHostAlloc(self, size: int, flags: int) -> int:
        return self._allocate(size)

    @faked
    def cudaFreeHost(self, ptr: int) -> None:
        self._free(ptr)

    @faked
    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: Any, stream: int) -> None:
        assert kind == real.cudaMemcpyKind.cudaMemcpyDefault
        self._start(stream, lambda: self._copy(dst, src, count))

    @faked
    def cudaStreamBeginCapture(self, stream: int, mode: Any) -> None:
        assert mode == real.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        assert stream not in self.captures
        self.captures[stream] = []

    @faked
    def cudaStreamEndCapture(self, stream: int) -> int:
        graph = self.handle()
        self.graphs[graph] = self.captures.pop(stream)
        return graph

    @faked
    def cudaGraphInstantiate(self, graph: int, flags: int) -> int:
        assert flags == 0
        executable = self.handle()
        self.graphs[executable] = list(self.graphs[graph])
        return executable

    @faked
    def cudaGraphLaunch(self, graphExec: int, stream: int) -> None:
        self.launches += 1
        for work in self.graphs[graphExec]:
            self._start(stream, work)

    @faked
    def cudaGraphExecDestroy(self, graphExec: int) -> None:
        del self.graphs[graphExec]

    @faked
    def cudaGraphDestroy(self, graph: int) -> None:
        del self.graphs[graph]

    @faked
    def cudaMemcpy(self, dst: int, src: int, count: int, kind: Any) -> None:
        assert kind == real.cudaMemcpyKind.cudaMemcpyDefault
        self._copy(dst, src, count)

    @faked
    def cudaPointerGetAttributes(self, ptr: int) -> Any:
        on_device = any(self._holds(address, ptr, 1) for address in self.on_device)
        kinds = real.cudaMemoryType
        kind = kinds.cudaMemoryTypeDevice if on_device else kinds.cudaMemoryTypeUnregistered
        return SimpleNamespace(type=kind, device=0 if on_device else -2)

    @faked
    def cudaDeviceGetAttribute(self, attr: Any, device: int) -> int:
        return self.attributes[attr.name]

    def cudaGetLastError(self) -> tuple[Any, ...]:
        status, self.last_error = self.lost or self.last_error, SUCCESS
        return (status,)

    def cudaGetErrorName(self, error: Any) -> tuple[Any, ...]:
        return real.cudaGetErrorName(error)

    def cudaGetErrorString(self, error: Any) -> tuple[Any, ...]:
        return real.cudaGetErrorString(error)

    def enqueue(self, stream: int, work: Any) -> None:
        """A kernel: ``work`` happens when its turn on the stream has come."""
        assert stream not in NAMELESS
        with self._lock:
            self._start(stream, work)

    def array(self, buffer: Any) -> np.ndarray:
        """What is in a buffer of the device now, as a kernel sees it."""
        start = next(address for address in self.on_device if self._holds(address, buffer.address, buffer.nbytes))
        content = self.memory[start][buffer.address - start :][: buffer.nbytes]
        return content.view(buffer.dtype).reshape(buffer.shape)

    def _start(self, stream: int, work: Any) -> None:
        if stream in self.captures:
            self.captures[stream].append(work)
        else:
            self._lazy.add(self.queues[stream], work)

    def _allocate(self, size: int) -> int:
        block = np.full(size, POISON, np.uint8)
        self.memory[block.ctypes.data] = block
        return block.ctypes.data

    def _free(self, address: int) -> None:
        self.memory.pop(address)[:] = POISON
        self.on_device.discard(address)

    def _copy(self, target: int, source: int, count: int) -> None:
        if all(any(self._holds(address, at, count) for address in self.memory) for at in (target, source)):
            ctypes.memmove(target, source, count)
            self.copies += 1
        else:
            self.lost = real.cudaError_t.cudaErrorIllegalAddress

    def _holds(self, start: int, address: int, count: int) -> bool:
        return start <= address and address + count <= start + len(self.memory[start])


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class FakeDlpackArray:
    """uint8 memory of a GPU as another library hands it over: DLPack's DLManagedTensor in a capsule."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, ordinal: int = 0):
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        self._ordinal = ordinal
        self._tensor = _Tensor(address, 2, ordinal, len(shape), 1, 8, 1, self._shape, self._strides, 0, None, None)
        self.stream: int | None = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._ordinal

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None) -> object:
        self.stream = stream
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._tensor), b"dltensor", None)
