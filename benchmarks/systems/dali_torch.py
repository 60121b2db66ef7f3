"""DALI for the photos, PyTorch for the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...engine.spec import ModelSpec
from .dali_photos import DaliPhotos
from .interface import Outputs, SystemOptions
from .tuned_network import TunedNetwork


class DaliTorch:
    """DALI decodes, resizes and crops; the network is that of the tuned PyTorch loop."""

    def __init__(self, spec: ModelSpec, files: Sequence[Path], options: SystemOptions) -> None:
        self._photos = DaliPhotos(files, spec.preprocess, options)
        self._network = TunedNetwork(spec, options)
        self._options = options
        self._latencies_s: list[float] = []

    def describe(self) -> str:
        from nvidia import dali

        decode = f"DALI {dali.__version__} decodes on {self._options.device}, {self._options.cpus} threads"
        return f"{decode}; {self._network.describe()}"

    def run(self) -> Outputs:
        outputs, self._latencies_s = self._network.one_pass(self._tensors())
        return outputs

    def latencies_s(self) -> Sequence[float]:
        return self._latencies_s

    def close(self) -> None:
        """Threads end with the process."""

    def _tensors(self) -> Iterator[tuple[Any, float]]:
        """uint8 [n, 3, height, width] views of DALI's batches."""
        import torch

        for pictures, started_s in self._photos.batches():
            levels = pictures.as_tensor()
            tensor = (
                torch.utils.dlpack.from_dlpack(levels) if self._options.on_gpu else torch.from_numpy(np.asarray(levels))
            )
            yield tensor.permute(0, 3, 1, 2), started_s
