"""The checks' network in PyTorch: on the CPU as a reference, and as an engine on a GPU."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...engine.backends.torch import TorchEngine
from ...engine.cuda.device import CudaDevice
from .network import SPEC, weights

if TYPE_CHECKING:
    import torch


class TorchNetwork:
    """The network with its weights on ``place``: float32 [n, height, width, 3], 0 to 255, to float32 [n, WIDTH]."""

    def __init__(self, place: str) -> None:
        import torch

        made = weights()
        self._layers = [
            (torch.from_numpy(layer.weight).to(place), layer.stride, layer.padding) for layer in made.layers
        ]
        self._head = torch.from_numpy(made.head).to(place)

    def __call__(self, levels: torch.Tensor) -> torch.Tensor:
        import torch

        x = ((levels - 127.5) / 64).permute(0, 3, 1, 2)
        for weight, stride, padding in self._layers:
            x = torch.nn.functional.conv2d(x, weight, stride=stride, padding=padding).relu()
        return x.mean(dim=(2, 3)) @ self._head


@functools.cache
def cpu_network() -> TorchNetwork:
    return TorchNetwork("cpu")


def cpu_rows(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Embeddings on the CPU."""
    import torch

    with torch.inference_mode():
        found: NDArray[np.float32] = cpu_network()(torch.from_numpy(pixels).float()).numpy()
    return found


def torch_network_engine(device: CudaDevice) -> TorchEngine:
    """The network on ``device``, which the engine owns. No TF32, and algorithms that give the same bits each time."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    network = TorchNetwork(device.name)
    return TorchEngine(lambda pixels: (network(pixels.float()),), SPEC, device, content="none")
