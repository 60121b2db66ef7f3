"""What an engine is: a loaded model that infers one batch at a time, and what one on a GPU offers beside that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..device import Buffer, Device, Event, Stream
from ..slots import BufferSpec
from ..spec import ModelSpec


class Engine(Protocol):
    """A loaded model. Thread-safe: several lanes may call ``infer`` at once.

    ``name`` tells backend and provider really used, such as ``onnxruntime:CPUExecutionProvider``;
    ``content`` is the SHA-256 (hex) of the model's content, external data included.
    """

    name: str
    spec: ModelSpec
    content: str

    def infer(self, pixels: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
        """Outputs by name for uint8 [n, height, width, 3] RGB; each holds exactly n rows.

        Raises InferError when the runtime fails on this batch.
        """
        ...

    def close(self) -> None: ...


class Context(Protocol):
    """What one slot needs of an engine on a GPU: its own scratch and shapes, so that its batches may overlap others.

    For one thread at a time, and for one batch at a time: the batch before has to be ahead on the same stream.
    """

    def enqueue(
        self,
        pixels: Buffer,
        outputs: Mapping[str, Buffer],
        rows: int,
        *,
        stream: Stream,
        consumed: Event | None = None,
    ) -> None:
        """Start the inference of the first ``rows`` rows of ``pixels`` on ``stream``; never waits for the GPU.

        To be called by work that runs on ``stream``, the one that the context was made for. ``pixels`` is uint8
        [>= rows, height, width, 3] on the engine's device; ``outputs`` are buffers as ``output_specs`` describes them,
        with at least ``rows`` rows, of which the first ``rows`` are written. ``rows`` is 1 to the engine's
        ``max_batch``. Where the runtime can tell when ``pixels`` may be overwritten, ``consumed`` is recorded there
        and marked; otherwise it is left as it was, for the stream to record. Raises InferError when the runtime
        refuses the batch, and DeviceError when the GPU is lost; ``consumed`` is not marked then, since the pictures of
        a refused batch are read again, one by one.
        """
        ...

    def close(self) -> None:
        """Give everything back; the last batch is done, and the engine still open."""
        ...


@runtime_checkable
class DeviceEngine(Engine, Protocol):
    """An engine whose inputs and outputs are buffers of a GPU.

    ``infer`` is there too, on arrays of the host: it copies, waits, and takes its turn. ``max_batch`` is the most rows
    of a batch.
    """

    max_batch: int

    @property
    def device(self) -> Device:
        """The one whose streams and buffers it takes; closed with the engine."""
        ...

    def output_specs(self, rows: int) -> Mapping[str, BufferSpec]:
        """Buffers on the device that hold the outputs of ``rows`` rows, by name of the output."""
        ...

    def new_context(self, stream: Stream) -> Context:
        """A context for batches on ``stream``. Blocks, up to seconds. Raises DeviceError without enough memory."""
        ...
