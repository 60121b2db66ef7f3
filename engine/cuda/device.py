"""A GPU behind the device seam, on cuda-python."""

from __future__ import annotations

import ctypes
import math
import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..device import Buffer, Stream
from ..errors import DeviceError
from ..gpu_probe import probe_gpu
from .calls import CudaCalls
from .foreign import foreign_memory, stream_handle
from .stream import CudaStream


class CudaBuffer:
    """Dense memory on a GPU at ``address``; ``buffer[a:b]`` is a view of rows.

    PyTorch, CuPy and nvImageCodec read it by ``__cuda_array_interface__``, which promises that nothing has to be
    waited for: whoever reads it does so on the stream, or after the event, of its last write.
    """

    __slots__ = ("_owner", "address", "dtype", "shape")

    def __init__(self, address: int, shape: tuple[int, ...], dtype: DTypeLike, owner: object = None) -> None:
        self.address = address
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._owner = owner

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3: CUDA Array Interface of Numba's documentation."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> CudaBuffer:
        start, stop, step = rows.indices(self.shape[0])
        if step != 1:
            raise ValueError(f"Rows with step {step} are not dense. Take consecutive ones.")
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        return CudaBuffer(self.address + start * row, (max(stop - start, 0), *self.shape[1:]), self.dtype, self._owner)


class CudaDevice:
    """GPU ``ordinal`` of this process: its primary context, which DALI, TensorRT and PyTorch share.

    Device memory comes from a pool of its own that keeps what it once got. ``runtime`` is cuda-python's
    ``cuda.bindings.runtime`` unless a test brings another. Raises DeviceError where there is no such GPU.
    """

    def __init__(self, ordinal: int = 0, *, runtime: Any = None) -> None:
        self.name = f"cuda:{ordinal}"
        self.cuda = CudaCalls(runtime or _real_runtime(ordinal), ordinal)
        self._lock = threading.Lock()
        self._pinned: dict[int, int] = {}
        self._allocated: set[int] = set()
        with self.cuda.current():
            self._pool = self._new_pool()
            self._stream = CudaStream(self.cuda, f"{self.name}-memory")

    def new_stream(self, name: str) -> CudaStream:
        return CudaStream(self.cuda, name)

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike, *, stream: Stream | None = None) -> CudaBuffer:
        """Memory of the pool, with arbitrary content: for every stream, or at once but for ``stream`` alone.

        The latter in work that runs on ``stream``. Raises DeviceError when there is not enough.
        """
        size: int = math.prod(shape) * np.dtype(dtype).itemsize
        handle = stream_handle(stream or self._stream)
        address = int(self.cuda.call("cudaMallocFromPoolAsync", max(size, 1), self._pool, handle))
        with self._lock:
            self._allocated.add(address)
        if stream is None:
            self.cuda.call("cudaStreamSynchronize", handle)
        return CudaBuffer(address, shape, dtype, self)

    def allocate_pinned(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        dtype = np.dtype(dtype)
        size = max(math.prod(shape) * dtype.itemsize, 1)
        with self.cuda.current():
            address = int(self.cuda.call("cudaHostAlloc", size, self.cuda.runtime.cudaHostAllocPortable))
        with self._lock:
            self._pinned[address] = size
        return _array_at(address, shape, dtype)

    def release(self, buffer: Buffer, *, stream: Stream | None = None) -> None:
        """Give back all of a buffer: when nothing uses it any more, or in order with what ``stream`` has started."""
        address = address_of(buffer)
        with self._lock:
            pinned = self._pinned.pop(address, None) is not None
            known = pinned or address in self._allocated
            self._allocated.discard(address)
        if not known:
            raise ValueError(f"The buffer at {address:#x} is not one that {self.name} gave out. Release each once.")
        if pinned:
            self.cuda.call("cudaFreeHost", address)
        else:
            self.cuda.call("cudaFreeAsync", address, stream_handle(stream or self._stream))

    def copy(self, target: Buffer, source: Buffer, *, stream: Stream) -> None:
        """Copy in the order of ``stream``; on the host only pinned memory, since any other would make the host wait."""
        if (target.dtype, target.nbytes) != (source.dtype, source.nbytes):
            raise ValueError(
                f"A copy of {source.dtype} {list(source.shape)} into {target.dtype} {list(target.shape)} does not fit. "
                "Take as many rows of the larger one."
            )
        for buffer in (target, source):
            self._check_copyable(buffer)
        kind = self.cuda.runtime.cudaMemcpyKind.cudaMemcpyDefault  # unified addresses tell the direction
        self.cuda.call(
            "cudaMemcpyAsync", address_of(target), address_of(source), source.nbytes, kind, stream_handle(stream)
        )

    def view(self, source: object, *, stream: Stream) -> CudaBuffer:
        """Another library's memory on this GPU, in place, for use on ``stream`` behind what its owner has started.

        To be called by work that runs on ``stream``. The view keeps ``source`` alive; hold it until the event after
        its last use. Raises TypeError or ValueError for what is no dense memory of this GPU.
        """
        handle = stream_handle(stream)
        memory = foreign_memory(source, self.cuda.ordinal, handle)
        place = self.cuda.call("cudaPointerGetAttributes", memory.address)
        on_device = place.type == self.cuda.runtime.cudaMemoryType.cudaMemoryTypeDevice
        if 0 not in memory.shape and not (on_device and place.device == self.cuda.ordinal):
            raise ValueError(
                f"{type(source).__name__} at {memory.address:#x} is not on {self.name}. Copy it there first."
            )
        if memory.stream is not None and memory.stream != handle:
            self._order(behind=memory.stream, stream=handle)
        return CudaBuffer(memory.address, memory.shape, memory.dtype, memory.owner)

    def close(self) -> None:
        self._stream.close()
        if self._stream.failure is None:  # a lost GPU would refuse, and hide why it is lost
            self.cuda.call("cudaMemPoolDestroy", self._pool)
            self.cuda.close()

    def _order(self, *, behind: int, stream: int) -> None:
        event = self.cuda.take_event()
        self.cuda.call("cudaEventRecord", event, behind)
        self.cuda.call("cudaStreamWaitEvent", stream, event, 0)
        self.cuda.give_event(event)

    def _check_copyable(self, buffer: Buffer) -> None:
        if isinstance(buffer, CudaBuffer):
            return
        address = address_of(buffer)
        with self._lock:
            pinned = any(start <= address and address + buffer.nbytes <= start + n for start, n in self._pinned.items())
        if not (pinned and buffer.flags.c_contiguous):
            raise ValueError(
                f"The array {list(buffer.shape)} is not dense pinned memory of {self.name}, so the host would wait for "
                "the copy. Use allocate_pinned."
            )

    def _new_pool(self) -> int:
        from cuda.bindings.driver import cuuint64_t

        runtime = self.cuda.runtime
        wanted = runtime.cudaMemPoolProps()
        wanted.allocType = runtime.cudaMemAllocationType.cudaMemAllocationTypePinned
        wanted.location.type = runtime.cudaMemLocationType.cudaMemLocationTypeDevice
        wanted.location.id = self.cuda.ordinal
        pool = int(self.cuda.call("cudaMemPoolCreate", wanted))
        keep = runtime.cudaMemPoolAttr.cudaMemPoolAttrReleaseThreshold
        self.cuda.call("cudaMemPoolSetAttribute", pool, keep, cuuint64_t(2**64 - 1))
        return pool


def address_of(buffer: Buffer) -> int:
    """Address of a CudaBuffer or a NumPy array."""
    return buffer.address if isinstance(buffer, CudaBuffer) else int(buffer.ctypes.data)


def _array_at(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    size = math.prod(shape) * dtype.itemsize
    content: Any = (ctypes.c_uint8 * max(size, 1)).from_address(address)
    return np.frombuffer(content, np.uint8)[:size].view(dtype).reshape(shape)


def _real_runtime(ordinal: int) -> Any:
    found = probe_gpu()
    if ordinal >= found.count:
        have = f"the last GPU here is cuda:{found.count - 1}" if found.count else found.reason
        raise DeviceError(f"No device 'cuda:{ordinal}': {have}. Use --device cpu, or run `vdali doctor`.")
    from cuda.bindings import runtime

    return runtime
