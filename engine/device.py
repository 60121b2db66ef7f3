"""The device seam: streams, events and buffers, alike on every device.

A stream runs work in order. On the host a stream is a worker thread: ONNX Runtime, libjpeg-turbo and DALI
release the GIL, so several host streams really run side by side. On a GPU a stream is such a thread, the
launcher, and the device's own queue: work that runs on the launcher only starts kernels and copies, which go
on after it has returned. Nothing outside the device modules asks which of the two it has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

Work = Callable[[], object]

Buffer = Any
"""Memory of one shape and dtype: ``shape``, ``dtype``, ``nbytes``, and ``buffer[:n]`` for its first n rows. On the
host a NumPy array; what a GPU has offers its address by ``__cuda_array_interface__``."""


class Event(Protocol):
    """A point in a stream, passed when all before it is done, on the device too.

    It belongs to one use: made, recorded once, waited for by any number. ``mark`` says that the work itself has
    recorded it, ahead of the stream's own ``record``.
    """

    def wait(self) -> None:
        """Block the host until it is passed. Raises what broke the stream."""
        ...

    def mark(self) -> None: ...


class Stream(Protocol):
    """Work in order. All but ``synchronize`` and ``close`` return at once.

    ``is_asynchronous``: what submitted work starts may go on after the work has returned. ``failure`` is what
    broke the stream, None while it is whole; a broken stream still runs what is submitted, so that nobody waits
    for ever, and its events pass or raise.
    """

    name: str
    is_asynchronous: bool
    failure: BaseException | None

    def submit(self, work: Work) -> None:
        """Run ``work`` on the stream's thread after all before it. It must not raise: nobody waits here for it."""
        ...

    def new_event(self) -> Event: ...

    def record(self, event: Event | None = None) -> Event:
        """The point after all that was submitted so far, in ``event`` unless that is marked by then."""
        ...

    def wait_for(self, event: Event) -> None:
        """Nothing submitted later starts before ``event`` is passed."""
        ...

    def synchronize(self) -> None:
        """Block the host until all that was submitted is done. Raises what broke the stream."""
        ...

    def close(self) -> None:
        """Finish what was submitted, then end the thread."""
        ...


class Device(Protocol):
    """Where streams run and buffers live."""

    name: str

    def new_stream(self, name: str) -> Stream: ...

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> Buffer:
        """Memory of the device, with arbitrary content. Raises DeviceError when there is not enough."""
        ...

    def allocate_pinned(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Memory of the host that the device copies from and to by itself."""
        ...

    def release(self, buffer: Buffer) -> None:
        """Give back what ``allocate`` or ``allocate_pinned`` gave; nothing may use it any more."""
        ...

    def copy(self, target: Buffer, source: Buffer, *, stream: Stream) -> None:
        """Copy all of ``source``, of the same dtype and size, in order with what ``stream`` has started.

        To be called by work that runs on ``stream``.
        """
        ...

    def close(self) -> None:
        """End what is not a stream's or a buffer's own; streams are closed and buffers released before."""
        ...


class HostEvent:
    """Point in a host stream."""

    def __init__(self) -> None:
        self._passed = threading.Event()

    def wait(self) -> None:
        self._passed.wait()

    def mark(self) -> None:
        self._passed.set()


class HostStream:
    """Worker thread that runs work in order; ``failure`` is what the first broken event it waited for raised."""

    is_asynchronous = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        self._queue.put(work)

    def new_event(self) -> HostEvent:
        return HostEvent()

    def record(self, event: Event | None = None) -> Event:
        event = event or HostEvent()
        self._queue.put(event.mark)
        return event

    def wait_for(self, event: Event) -> None:
        self._queue.put(lambda: self._block(event))

    def synchronize(self) -> None:
        self.record().wait()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # what it holds must not live until the next one comes

    def _block(self, event: Event) -> None:
        try:
            event.wait()
        except BaseException as error:  # whoever runs on this stream next has to look
            self.failure = self.failure or error


class HostDevice:
    """The CPU: streams are threads, buffers are NumPy arrays."""

    name = "cpu"

    def new_stream(self, name: str) -> HostStream:
        return HostStream(name)

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        return np.empty(shape, dtype)

    def allocate_pinned(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        return np.empty(shape, dtype)

    def release(self, buffer: Buffer) -> None:
        """Nothing to do: an array goes when nobody refers to it."""

    def copy(self, target: Buffer, source: Buffer, *, stream: Stream) -> None:
        del stream  # its thread is the one that calls
        np.copyto(target, source, casting="no")

    def close(self) -> None:
        """Nothing to do."""
