"""An engine that is one kernel: slow by chance, exact, and it destroys what it has read: a wrong order shows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.backends.buffers import HostCalls
from ...engine.cuda.device import CudaDevice
from ...engine.cuda.foreign import stream_handle
from ...engine.cuda.kernels import CudaKernels
from ...engine.cuda.stream import CudaEvent
from ...engine.device import Buffer, Event, Stream
from ...engine.preprocess import Preprocess
from ...engine.slots import BufferSpec
from ...engine.spec import ModelSpec, Task
from ...kernels.launch import Launch

SIDE = 32
WIDTH = 3 * SIDE * SIDE
"""Outputs per row: one per byte of a picture of SIDE, sums of more bytes for larger ones."""

_POISON = 0xFF
_MOST_TICKS = 200_000
_SOURCE = """
// Waits `ticks` clock ticks, then out[i] = 1.5 * (sum of `chunk` bytes) + i % width, so that what is overwritten too
// early is seen.
extern "C" __global__ void late_affine(const unsigned char* in, float* out, int n, int chunk, int width,
                                       long long ticks) {
    const long long start = clock64();
    while (clock64() - start < ticks) {}
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int sum = 0;
        for (int j = 0; j < chunk; ++j)
            sum += in[(long long)i * chunk + j];
        out[i] = sum * 1.5f + i % width;
    }
}
"""


def expected(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Rows float32 [n, WIDTH]; all numbers are multiples of a half below 2**23, so exact."""
    sums = pixels.reshape(len(pixels), WIDTH, -1).sum(axis=2, dtype=np.float32)
    rows: NDArray[np.float32] = sums * np.float32(1.5) + np.arange(WIDTH, dtype=np.float32)
    return rows


class LateAffineEngine:
    """uint8 [n, height, width, 3] to float32 [n, WIDTH]; a picture's bytes are a multiple of WIDTH."""

    name = "late-affine"
    content = "none"
    max_batch = 256

    def __init__(self, device: CudaDevice, preprocess: Preprocess | None = None) -> None:
        preprocess = preprocess or Preprocess((SIDE, SIDE), (SIDE, SIDE))
        self.spec = ModelSpec("late_affine", Task.EMBED, preprocess, raw_output="embedding", weights="none")
        self.device = device
        self.kernels = CudaKernels(device, _SOURCE, "late_affine.cu")
        self.ticks = np.random.default_rng(9).integers(0, _MOST_TICKS, 1 << 12)
        self.turn = count()
        self._host_calls = HostCalls(self, device)

    def output_specs(self, rows: int) -> Mapping[str, BufferSpec]:
        return {"embedding": BufferSpec((rows, WIDTH), np.float32)}

    def new_context(self, stream: Stream) -> LateAffineContext:
        return LateAffineContext(self, stream)

    def infer(self, pixels: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
        return self._host_calls.infer(pixels)

    def close(self) -> None:
        self._host_calls.close()
        self.device.close()


class LateAffineContext:
    """The kernel, then poison over its input, then the event that gives the input back."""

    def __init__(self, engine: LateAffineEngine, stream: Stream) -> None:
        self._engine = engine
        self._handle = stream_handle(stream)

    def enqueue(
        self,
        pixels: Buffer,
        outputs: Mapping[str, Buffer],
        rows: int,
        *,
        stream: Stream,
        consumed: Event | None = None,
    ) -> None:
        """See Context."""
        engine = self._engine
        ticks = np.int64(engine.ticks[next(engine.turn) % len(engine.ticks)])
        bytes_per_row = pixels.nbytes // len(pixels)
        sizes = (np.int32(rows * WIDTH), np.int32(bytes_per_row // WIDTH), np.int32(WIDTH))
        arguments = (pixels.address, outputs["embedding"].address, *sizes, ticks)
        engine.kernels.launch([Launch("late_affine", (32, 1, 1), (256, 1, 1), arguments)], stream=stream)
        engine.device.cuda.call("cudaMemsetAsync", pixels.address, _POISON, rows * bytes_per_row, self._handle)
        if consumed is not None:
            assert isinstance(consumed, CudaEvent)
            consumed.record_on(self._handle)

    def close(self) -> None:
        """Nothing is held."""
