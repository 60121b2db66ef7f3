"""The plain PyTorch loop: DataLoader workers, PIL, torchvision transforms, eager model in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.preprocess import Preprocess


class TorchPlain:
    """What most people write first. ``model`` is an nn.Module that gives [n, d] for a batch."""

    name = "torch"

    def __init__(self, model: Any, spec: Preprocess, *, batch_size: int, workers: int) -> None:
        self._model = model.eval()
        self._transform = transform_of(spec)
        self._batch_size = batch_size
        self._workers = workers

    def describe(self) -> str:
        import torch

        return (
            f"torch {torch.__version__}, DataLoader with {self._workers} workers, PIL, torchvision transforms, eager "
            f"fp32, batch {self._batch_size}, {torch.get_num_threads()} threads"
        )

    def run(self, files: Sequence[Path]) -> NDArray[np.float32]:
        import torch
        from torch.utils.data import DataLoader

        loader: Any = DataLoader(
            _Photos(files, self._transform),  # type: ignore[arg-type]
            batch_size=self._batch_size,
            num_workers=self._workers,
        )
        with torch.no_grad():
            return np.concatenate([self._model(batch).numpy() for batch in loader])

    def close(self) -> None:
        """Nothing to close: workers end with each run."""


class _Photos:
    """Map-style dataset of transformed photos."""

    def __init__(self, files: Sequence[Path], transform: Any) -> None:
        self._files = files
        self._transform = transform

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        with Image.open(self._files[index]) as image:
            return self._transform(image.convert("RGB"))


def transform_of(spec: Preprocess) -> Any:
    """Torchvision transforms that do what ``spec`` says (shorter side and centre crop, or squash)."""
    from torchvision import transforms
    from torchvision.transforms import InterpolationMode

    from ...engine.preprocess import ResizeMode

    resize: Any = spec.resize[0] if spec.mode is ResizeMode.SHORTER else list(spec.resize)
    return transforms.Compose(
        [
            transforms.Resize(resize, InterpolationMode(spec.interpolation.value), antialias=True),
            transforms.CenterCrop(spec.size),
            transforms.ToTensor(),
            transforms.Normalize(spec.mean, spec.std),
        ]
    )
