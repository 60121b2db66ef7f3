"""The plain PyTorch loop: DataLoader workers, PIL, torchvision transforms, eager model in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...engine.preprocess import ColorOrder, Preprocess
from ...engine.spec import ModelSpec
from .interface import Outputs, SystemOptions
from .network import Network
from .torch_photos import batches_of, pil_photo, with_starts


class TorchPlain:
    """What most people write first."""

    def __init__(self, spec: ModelSpec, files: Sequence[Path], options: SystemOptions) -> None:
        import torch

        torch.set_num_threads(options.cpus)
        self._network = Network(spec, device=options.device)
        self._options = options
        load = partial(_normalised, spec=spec.preprocess)
        self._loader = batches_of(files, load, batch_size=options.batch_size, workers=options.cpus)
        self._latencies_s: list[float] = []

    def describe(self) -> str:
        import torch

        options = self._options
        return (
            f"torch {torch.__version__}, DataLoader with {options.cpus} workers, PIL, torchvision transforms, eager "
            f"fp32 on {options.device}, batch {options.batch_size}, {torch.get_num_threads()} threads"
        )

    def run(self) -> Outputs:
        import torch

        def infer(pictures: Any) -> tuple[Any, ...]:
            return self._network(pictures.to(self._options.device))

        with torch.no_grad():
            outputs, self._latencies_s = self._network.one_pass(with_starts(self._loader), infer)
        return outputs

    def latencies_s(self) -> Sequence[float]:
        return self._latencies_s

    def close(self) -> None:
        del self._loader  # ends its workers


def _normalised(path: Path, *, spec: Preprocess) -> Any:
    """float32 [3, height, width] of one photo: ToTensor and Normalize as everybody uses them."""
    from torchvision.transforms import functional

    pixels = functional.to_tensor(pil_photo(path, spec))
    if spec.color_order is ColorOrder.BGR:
        pixels = pixels.flip(0)
    return functional.normalize(pixels, list(spec.mean), list(spec.std))
