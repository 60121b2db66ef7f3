"""The device seam: streams, events and buffers, alike on every device.

A stream runs work in order. On the host a stream is a worker thread: ONNX Runtime, libjpeg-turbo and DALI
release the GIL, so several host streams really run side by side. Nothing outside this module asks which
device it is on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

Work = Callable[[], None]


class Event(Protocol):
    """A point in a stream; ``wait`` blocks the host until the stream has passed it."""

    def wait(self, timeout_s: float | None = None) -> bool: ...


class Stream(Protocol):
    """Work in order. ``submit`` and ``wait_for`` return at once; ``synchronize`` blocks the host."""

    name: str

    def submit(self, work: Work) -> None: ...

    def record(self) -> Event: ...

    def wait_for(self, event: Event) -> None: ...

    def synchronize(self) -> None: ...

    def close(self) -> None: ...


class Device(Protocol):
    """Where streams run and buffers live."""

    name: str

    def new_stream(self, name: str) -> Stream: ...

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]: ...


class HostEvent:
    """Point in a host stream."""

    def __init__(self) -> None:
        self._passed = threading.Event()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._passed.wait(timeout_s)

    def mark(self) -> None:
        self._passed.set()


class HostStream:
    """Worker thread that runs work in order.

    Work must not raise: what fails inside is the caller's to catch, since nobody waits here for it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        self._queue.put(work)

    def record(self) -> HostEvent:
        event = HostEvent()
        self._queue.put(event.mark)
        return event

    def wait_for(self, event: Event) -> None:
        self._queue.put(lambda: _block(event))

    def synchronize(self) -> None:
        self.record().wait()

    def close(self) -> None:
        """Finish what was submitted, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()


def _block(event: Event) -> None:
    event.wait()


class HostDevice:
    """The CPU: streams are threads, buffers are NumPy arrays."""

    name = "cpu"

    def new_stream(self, name: str) -> HostStream:
        return HostStream(name)

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        return np.empty(shape, dtype)
