"""What only a GPU has, played on FakeCudaRuntime: a DALI pipeline for it, and an engine with contexts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from fake_cuda import FakeCudaRuntime
from vdali.engine.cuda.device import CudaBuffer, CudaDevice
from vdali.engine.device import Event
from vdali.engine.errors import InferError
from vdali.engine.slots import BufferSpec
from vdali.engine.spec import ModelSpec, Task

POISON = 0xCD


class FakeMixedPipeline:
    """A real DALI pipeline of the CPU whose output arrives on the fake GPU only when the stream's turn has come.

    What nobody holds any more is poisoned, as DALI uses the memory of an output again.
    """

    def __init__(self, pipeline: Any, device: CudaDevice, runtime: FakeCudaRuntime) -> None:
        self._pipeline = pipeline
        self._device = device
        self._runtime = runtime
        self.feed_input = pipeline.feed_input
        self.runs = 0

    def lose_run(self) -> None:
        """What was fed goes into a run whose output nobody gets."""
        self.runs += 1
        self._pipeline.run()

    def run(self, stream: Any) -> tuple[Any, ...]:
        self.runs += 1
        (outputs,) = self._pipeline.run()
        return (FakeOutputs(np.array(outputs.as_tensor()), self._device, self._runtime, stream),)


class FakeOutputs:
    """TensorListGPU: memory that is given up when the last holder lets go."""

    def __init__(self, pixels: np.ndarray, device: CudaDevice, runtime: FakeCudaRuntime, stream: Any) -> None:
        self._runtime = runtime
        self._buffer = device.allocate(pixels.shape, np.uint8)
        self._device = device
        buffer = self._buffer
        runtime.enqueue(stream.handle, lambda: np.copyto(runtime.array(buffer), pixels))

    is_dense = True

    def is_dense_tensor(self) -> bool:
        return self.is_dense

    def as_tensor(self) -> Any:
        assert self.is_dense
        return _Array(self._buffer)

    def at(self, row: int) -> Any:
        picture = self._buffer[row : row + 1]
        return _Array(CudaBuffer(picture.address, picture.shape[1:], picture.dtype))

    def __del__(self) -> None:
        if self._runtime.lost is not None or self._buffer.address not in self._runtime.on_device:
            return
        if not self._runtime.pools:  # the device is closed; an error's traceback has kept this until now
            return
        self._runtime.array(self._buffer).fill(POISON)
        self._device.release(self._buffer)


class _Array:
    """Memory that the holder of this does not keep alive."""

    def __init__(self, buffer: CudaBuffer) -> None:
        self.__cuda_array_interface__ = buffer.__cuda_array_interface__


class FakeContext:
    """Runs the engine's function as a kernel that reads its input when its turn has come, and poisons it then."""

    def __init__(self, engine: FakeDeviceEngine, stream: Any) -> None:
        self._engine = engine
        self._stream = stream
        self.closed = False

    def enqueue(
        self, pixels: Any, outputs: Mapping[str, Any], rows: int, *, stream: Any, consumed: Event | None = None
    ) -> None:
        engine = self._engine
        assert stream is self._stream
        assert not self.closed
        assert 1 <= rows <= engine.max_batch
        engine.batches.append(rows)
        if engine.refuses is not None and (reason := engine.refuses(engine, pixels, rows)):
            raise InferError("refused", reason)
        runtime, read = engine.runtime, pixels[:rows]
        results: dict[str, np.ndarray] = {}

        def consume() -> None:
            content = runtime.array(read)
            results.update(engine.function(content.copy()))
            content.fill(POISON)

        def write() -> None:
            for name, result in results.items():
                runtime.array(outputs[name][:rows])[...] = result

        runtime.enqueue(stream.handle, consume)
        if consumed is not None:
            consumed.record_on(stream.handle)
        runtime.enqueue(stream.handle, write)

    def close(self) -> None:
        self.closed = True


class FakeDeviceEngine:
    """An engine on the fake GPU that computes ``function``: pixels [n, h, w, 3] to outputs by name.

    ``refuses(engine, pixels, rows)`` gives the reason why a batch is refused, or nothing.
    """

    name = "fake-gpu-engine"
    content = "none"

    def __init__(
        self,
        device: CudaDevice,
        runtime: FakeCudaRuntime,
        spec: ModelSpec,
        function: Callable[[np.ndarray], dict[str, np.ndarray]],
        *,
        max_batch: int = 32,
        refuses: Callable[[FakeDeviceEngine, Any, int], str] | None = None,
    ) -> None:
        self.device = device
        self.runtime = runtime
        self.spec = spec
        self.function = function
        self.max_batch = max_batch
        self.refuses = refuses
        self.batches: list[int] = []
        self.contexts: list[FakeContext] = []

    def output_specs(self, rows: int) -> dict[str, BufferSpec]:
        blank = self.function(np.zeros((1, *self.spec.preprocess.size, 3), np.uint8))
        return {name: BufferSpec((rows, *value.shape[1:]), value.dtype) for name, value in blank.items()}

    def new_context(self, stream: Any) -> FakeContext:
        self.contexts.append(FakeContext(self, stream))
        return self.contexts[-1]

    def infer(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        return self.function(pixels)

    def close(self) -> None: ...


def mean_colour(pixels: np.ndarray) -> dict[str, np.ndarray]:
    """What the model of ``models.mean_colour_model`` gives."""
    return {"embedding": pixels.astype(np.float32).mean(axis=(1, 2))}


def colour_spec(preprocess: Any) -> ModelSpec:
    return ModelSpec("mean_colour", Task.EMBED, preprocess, raw_output="embedding", weights="none")
