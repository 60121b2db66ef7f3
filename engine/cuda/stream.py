"""Streams and events of a GPU.

Stage code of a GPU is host code that starts kernels, copies, a decode or an inference on a stream that it was given,
and returns. Each stream has a thread for that, the launcher: it makes what one stage starts follow what the stage
before it has started, without the thread that feeds the scheduler ever waiting.
"""

from __future__ import annotations

import threading
from functools import partial

from ..device import Event, HostStream, Work
from .calls import CudaCalls


class CudaEvent:
    """Point in a CUDA stream; ``handle`` is its cudaEvent_t.

    CUDA takes a wait for an event that nobody has recorded yet as no wait at all, so whoever waits first waits for
    the mark.
    """

    def __init__(self, cuda: CudaCalls) -> None:
        self.handle = cuda.take_event()
        self._cuda = cuda
        self._marked = threading.Event()
        self._failure: BaseException | None = None

    def __del__(self) -> None:
        if hasattr(self, "handle"):  # not where the first call of __init__ has failed
            self._cuda.give_event(self.handle)

    def wait(self) -> None:
        self._wait_until_recorded()
        with self._cuda.current():
            self._cuda.call("cudaEventSynchronize", self.handle)

    def mark(self) -> None:
        self._marked.set()

    def record_on(self, stream: int) -> None:
        """Record on the cudaStream_t ``stream``, unless the work has done so."""
        if self._marked.is_set():
            return
        try:
            self._cuda.call("cudaEventRecord", self.handle, stream)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._marked.set()

    def hold(self, stream: int) -> None:
        """Make the cudaStream_t ``stream`` wait; blocks the host only until the event is recorded."""
        self._wait_until_recorded()
        self._cuda.call("cudaStreamWaitEvent", stream, self.handle, 0)

    def _wait_until_recorded(self) -> None:
        self._marked.wait()
        if self._failure is not None:
            raise self._failure


class CudaStream:
    """Non-blocking CUDA stream with its launcher; ``handle`` is its cudaStream_t.

    Work runs on the launcher with this GPU current. DALI, cuda.core and PyTorch take the object itself as a
    stream (``__cuda_stream__``); TensorRT takes ``handle``.
    """

    is_asynchronous = True

    def __init__(self, cuda: CudaCalls, name: str) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self._cuda = cuda
        with cuda.current():
            self.handle = int(cuda.call("cudaStreamCreateWithFlags", cuda.runtime.cudaStreamNonBlocking))
        self._launcher = HostStream(name)
        self._launch(partial(cuda.call, "cudaSetDevice", cuda.ordinal))

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, and the handle."""
        return 0, self.handle

    def submit(self, work: Work) -> None:
        self._launcher.submit(work)

    def new_event(self) -> CudaEvent:
        return CudaEvent(self._cuda)

    def record(self, event: Event | None = None) -> Event:
        event = event or self.new_event()
        assert isinstance(event, CudaEvent), "a stream records the events that it made"
        self._launch(partial(event.record_on, self.handle))
        return event

    def wait_for(self, event: Event) -> None:
        self._launch(partial(event.hold, self.handle) if isinstance(event, CudaEvent) else event.wait)

    def synchronize(self) -> None:
        self._launcher.synchronize()
        with self._cuda.current():
            self._cuda.call("cudaStreamSynchronize", self.handle)
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self._launch(partial(self._cuda.call, "cudaStreamSynchronize", self.handle))
        self._launch(partial(self._cuda.call, "cudaStreamDestroy", self.handle))
        self._launcher.close()

    def _launch(self, work: Work) -> None:
        self._launcher.submit(partial(self._guarded, work))

    def _guarded(self, work: Work) -> None:
        try:
            work()
        except BaseException as error:  # whoever runs on this stream next has to look
            self.failure = self.failure or error
