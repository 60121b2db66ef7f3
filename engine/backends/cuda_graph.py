"""CUDA graphs: work that was started once on a stream, to be started again with one call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ..cuda.calls import CudaCalls
from ..errors import DeviceError


class CudaGraph:
    """What ``work`` starts on the cudaStream_t ``stream``, captured instead of run; ``launch`` runs it.

    The capture concerns the calling thread alone, since decoders allocate on theirs meanwhile. Raises what ``work``
    raises, and DeviceError for work that cannot be captured; the stream is as it was before.
    """

    def __init__(self, cuda: CudaCalls, stream: int, work: Callable[[], object]) -> None:
        self._cuda = cuda
        mode = cuda.runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        cuda.call("cudaStreamBeginCapture", stream, mode)
        try:
            work()
        except BaseException:
            with suppress(DeviceError):  # what ``work`` has raised is the one to tell
                cuda.call("cudaGraphDestroy", cuda.call("cudaStreamEndCapture", stream))
            raise
        graph = cuda.call("cudaStreamEndCapture", stream)
        try:
            self._executable = cuda.call("cudaGraphInstantiate", graph, 0)
        finally:
            cuda.call("cudaGraphDestroy", graph)

    def launch(self, stream: int) -> None:
        self._cuda.call("cudaGraphLaunch", self._executable, stream)

    def close(self) -> None:
        """Forget the graph; its last launch is done."""
        self._cuda.call("cudaGraphExecDestroy", self._executable)
