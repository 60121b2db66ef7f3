"""What a system is: something that turns image files into vectors, whole, under one timing boundary.

The boundary: encoded bytes on disk to results in host memory, in input order. Loading the model and
starting workers' interpreters happens before; whatever is done per image or per batch is inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class System(Protocol):
    """One contender. ``describe`` says in one line what it runs and with which settings."""

    name: str

    def describe(self) -> str: ...

    def run(self, files: Sequence[Path]) -> NDArray[np.float32]:
        """Outputs [len(files), d] in the order of ``files``."""
        ...

    def close(self) -> None: ...
