"""PyTorch as one who has read its tuning guides writes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ...engine.spec import ModelSpec
from .interface import Outputs, SystemOptions
from .torch_photos import batches_of, tensor_photo, with_starts
from .tuned_network import TunedNetwork


class TorchTuned:
    """torchvision.io decodes, v2 transforms work on uint8 tensors, the batch is normalised at once by a tuned network.

    On a GPU also pinned memory and copies that do not block. ``compiled`` adds torch.compile.
    """

    def __init__(self, spec: ModelSpec, files: Sequence[Path], options: SystemOptions, *, compiled: bool) -> None:
        self._network = TunedNetwork(spec, options, compiled=compiled)
        self._options = options
        load = partial(tensor_photo, spec=spec.preprocess)
        self._loader = batches_of(
            files, load, batch_size=options.batch_size, workers=options.cpus, pinned=options.on_gpu
        )
        self._latencies_s: list[float] = []

    def describe(self) -> str:
        return (
            f"DataLoader with {self._options.cpus} workers, torchvision.io decode, v2 transforms on uint8 tensors; "
            f"{self._network.describe()}"
        )

    def run(self) -> Outputs:
        outputs, self._latencies_s = self._network.one_pass(with_starts(self._loader))
        return outputs

    def latencies_s(self) -> Sequence[float]:
        return self._latencies_s

    def close(self) -> None:
        del self._loader  # ends its workers
