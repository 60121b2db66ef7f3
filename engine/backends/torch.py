"""PyTorch as an engine, for comparison: a module on a GPU, on the caller's stream and the caller's buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cuda.device import CudaDevice
from ..cuda.foreign import stream_handle
from ..cuda.stream import CudaEvent
from ..device import Buffer, Event, Stream
from ..errors import DeviceError, InferError, MissingExtraError
from ..slots import BufferSpec
from ..spec import OUTPUT_NAMES, ModelSpec
from .buffers import HostCalls, check_batch

MAX_BATCH = 1024
"""PyTorch has no bound of its own; the GPU's memory has."""


class TorchEngine:
    """A PyTorch module on ``device``, which it closes in the end.

    ``module`` takes a uint8 tensor [n, height, width, 3] RGB on the GPU and gives the outputs of the spec's task, in
    the order of OUTPUT_NAMES: a module with its normalisation and head. ``content`` names its weights. The first
    picture is inferred when the engine is made. Settings of the process, such as TF32, are the caller's. Raises
    MissingExtraError without PyTorch, DeviceError when it has no CUDA, InferError when the module fails.
    """

    def __init__(
        self, module: Callable[[Any], tuple[Any, ...]], spec: ModelSpec, device: CudaDevice, *, content: str = ""
    ) -> None:
        self.name = f"torch:{self._version(device)}"
        self.spec = spec
        self.content = content
        self.device = device
        self.max_batch = MAX_BATCH
        self._module: Callable[[Any], tuple[Any, ...]] | None = module
        self._pixels = BufferSpec((MAX_BATCH, *spec.preprocess.size, 3), np.uint8)
        self._host_calls = HostCalls(self, device)
        try:
            self._specs = self._first_picture()
        except BaseException:
            self._host_calls.close()
            raise

    def output_specs(self, rows: int) -> Mapping[str, BufferSpec]:
        return {name: spec.with_rows(rows) for name, spec in self._specs.items()}

    def new_context(self, stream: Stream) -> TorchContext:
        """What a slot needs: no more than the stream, since PyTorch keeps memory by stream."""
        return TorchContext(self, stream_handle(stream))

    def infer(self, pixels: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
        return self._host_calls.infer(pixels)

    def close(self) -> None:
        self._host_calls.close()
        self._module = None
        self.device.close()

    def start(
        self, pixels: Buffer, outputs: Mapping[str, Buffer], rows: int, stream: int, consumed: Event | None
    ) -> None:
        """Start a batch on the cudaStream_t ``stream``; see Context."""
        check_batch(pixels, outputs, rows, wanted=self._pixels, specs=self._specs)
        try:
            with self.on(stream):
                copied = self.tensor(pixels[:rows]).clone()
                if consumed is not None:
                    assert isinstance(consumed, CudaEvent), "an event of the engine's device"
                    self.device.cuda.call("cudaEventRecord", consumed.handle, stream)
                values = self._values(copied)
                for name, value in values.items():
                    if len(value) != rows:  # a single row would be copied to all
                        raise InferError("wrong_rows", f"Output '{name}' has {len(value)} rows for a batch of {rows}.")
                    self.tensor(outputs[name][:rows]).copy_(value, non_blocking=True)
            if consumed is not None:
                consumed.mark()  # not before: a batch that fails is tried again, picture by picture
        except RuntimeError as error:  # what PyTorch raises, out of memory included
            self.device.cuda.check_alive("PyTorch")
            raise InferError("runtime_error", f"PyTorch failed on a batch of {rows}: {error}") from error

    def on(self, stream: int) -> AbstractContextManager[None]:
        """The stream as PyTorch's current one, for a block that needs no gradients."""
        return _on_stream(stream, self.device.name)

    def tensor(self, buffer: Buffer) -> Any:
        """A buffer of the device as a tensor, in place."""
        import torch

        return torch.as_tensor(buffer, device=self.device.name)

    def _values(self, pixels: Any) -> dict[str, Any]:
        assert self._module is not None, "the engine is closed"
        values = self._module(pixels)
        return dict(zip(OUTPUT_NAMES[self.spec.task], values, strict=True))

    def _first_picture(self) -> dict[str, BufferSpec]:
        """Outputs of one black picture, as the module gives them; half precision leaves as float32."""
        stream = self._host_calls.stream
        pixels = self.device.allocate((1, *self._pixels.shape[1:]), np.uint8)
        try:
            with self.on(stream_handle(stream)):
                values = self._values(self.tensor(pixels).zero_())
            stream.synchronize()
        except RuntimeError as error:
            self.device.cuda.check_alive("PyTorch")
            raise InferError("runtime_error", f"PyTorch failed on the first picture: {error}") from error
        finally:
            self.device.release(pixels)
        return {
            name: BufferSpec((MAX_BATCH, *value.shape[1:]), np.float32 if value.is_floating_point() else _dtype(value))
            for name, value in values.items()
        }

    def _version(self, device: CudaDevice) -> str:
        """PyTorch's version; raises where it cannot use the GPU."""
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError("torch", "torch", "Running a PyTorch module") from error
        if not torch.cuda.is_available():
            raise DeviceError(
                f"PyTorch {torch.__version__} cannot use {device.name}: it was built without CUDA, or for another "
                "driver. Install a build for this one (pytorch.org), or use --device cpu."
            )
        return str(torch.__version__)


class TorchContext:
    """The stream of one slot."""

    def __init__(self, engine: TorchEngine, stream: int) -> None:
        self._engine = engine
        self._stream = stream

    def enqueue(
        self,
        pixels: Buffer,
        outputs: Mapping[str, Buffer],
        rows: int,
        *,
        stream: Stream,
        consumed: Event | None = None,
    ) -> None:
        """Start a batch; see Context. The module works on a copy of the pixels, which are free at once."""
        if stream_handle(stream) != self._stream:
            raise ValueError("The context was made for another stream. Make one for each.")
        self._engine.start(pixels, outputs, rows, self._stream, consumed)

    def close(self) -> None:
        """Nothing to do: PyTorch keeps its memory for the next batch, whoever brings it."""


@contextmanager
def _on_stream(stream: int, device: str) -> Iterator[None]:
    import torch

    external: Any = torch.cuda.ExternalStream  # untyped
    with torch.inference_mode(), torch.cuda.stream(external(stream, device=device)):
        yield


def _dtype(value: Any) -> np.dtype[Any]:
    return np.dtype(str(value.dtype).removeprefix("torch."))
