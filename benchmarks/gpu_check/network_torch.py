"""The checks' network in PyTorch: on the CPU as a reference, and as an engine on the caller's stream and buffers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...engine.backends.buffers import HostCalls
from ...engine.cuda_device import CudaDevice
from ...engine.cuda_foreign import stream_handle
from ...engine.cuda_stream import CudaEvent
from ...engine.device import Buffer, Event, Stream
from ...engine.errors import InferError
from ...engine.slots import BufferSpec
from .network import SPEC, WIDTH, weights


class TorchNetwork:
    """The network with its weights on ``place``: uint8 [n, height, width, 3] to float32 [n, WIDTH]."""

    def __init__(self, place: str) -> None:
        made = weights()
        self._layers = [
            (torch.from_numpy(layer.weight).to(place), layer.stride, layer.padding) for layer in made.layers
        ]
        self._head = torch.from_numpy(made.head).to(place)

    def __call__(self, levels: torch.Tensor) -> torch.Tensor:
        """``levels`` are float32 [n, height, width, 3], 0 to 255."""
        x = ((levels - 127.5) / 64).permute(0, 3, 1, 2)
        for weight, stride, padding in self._layers:
            x = torch.nn.functional.conv2d(x, weight, stride=stride, padding=padding).relu()
        return x.mean(dim=(2, 3)) @ self._head


@functools.cache
def cpu_network() -> TorchNetwork:
    return TorchNetwork("cpu")


def cpu_rows(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Embeddings on the CPU."""
    with torch.inference_mode():
        found: NDArray[np.float32] = cpu_network()(torch.from_numpy(pixels).float()).numpy()
    return found


class TorchNetworkEngine:
    """The network as a DeviceEngine. All is fp32: no TF32, and algorithms that give the same bits each time."""

    name = f"torch:{torch.__version__}"
    spec = SPEC
    content = "none"
    max_batch = 256

    def __init__(self, device: CudaDevice) -> None:
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        self.device = device
        self.place = f"cuda:{device.cuda.ordinal}"
        self.network = TorchNetwork(self.place)
        self._host_calls = HostCalls(self, device)

    def output_specs(self, rows: int) -> Mapping[str, BufferSpec]:
        return {"embedding": BufferSpec((rows, WIDTH), np.float32)}

    def new_context(self, stream: Stream) -> TorchNetworkContext:
        return TorchNetworkContext(self, stream)

    def infer(self, pixels: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
        return self._host_calls.infer(pixels)

    def close(self) -> None:
        self._host_calls.close()
        self.device.close()


class TorchNetworkContext:
    """PyTorch on a foreign stream: its memory is used again in that stream's order."""

    def __init__(self, engine: TorchNetworkEngine, stream: Stream) -> None:
        self._engine = engine
        self._handle = stream_handle(stream)
        self._stream: Any = torch.cuda.ExternalStream(  # type: ignore[no-untyped-call]
            self._handle, device=engine.place
        )

    def enqueue(
        self,
        pixels: Buffer,
        outputs: Mapping[str, Buffer],
        rows: int,
        *,
        stream: Stream,
        consumed: Event | None = None,
    ) -> None:
        """See Context. The input is free as soon as it is cast to fp32."""
        assert stream_handle(stream) == self._handle
        place = self._engine.place
        try:
            with torch.cuda.stream(self._stream), torch.inference_mode():
                levels = torch.as_tensor(pixels[:rows], device=place).float()
                embedding = self._engine.network(levels)
                torch.as_tensor(outputs["embedding"][:rows], device=place).copy_(embedding)
        except RuntimeError as error:
            raise InferError("runtime_error", f"PyTorch failed on a batch of {rows}: {error}") from error
        if consumed is not None:
            assert isinstance(consumed, CudaEvent)
            consumed.record_on(self._handle)

    def close(self) -> None:
        """PyTorch keeps its memory for itself."""
