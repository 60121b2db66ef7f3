"""What an engine is: a loaded model that infers one batch at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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
