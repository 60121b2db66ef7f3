"""What a system is: something that turns its image files into results, whole, under one timing boundary.

The boundary: encoded bytes on disk to results in host memory, in the order of the files. Loading the model and
starting interpreters happens before; whatever is done per image or per batch is inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

Outputs = Mapping[str, NDArray[Any]]
"""Results by name, row i of each for file i: a model's are OUTPUT_NAMES of its task, a loader's are ``pixels``."""


@dataclass(frozen=True, slots=True)
class SystemOptions:
    """What all systems are given alike.

    ``batch_size`` is the most images per call of the model, ``cpus`` how many CPUs there are to use, ``device``
    is ``cpu`` or ``cuda:N``.
    """

    batch_size: int
    cpus: int
    device: str = "cpu"

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"


class System(Protocol):
    """One contender, built for the files that it will be run over again and again."""

    def describe(self) -> str:
        """One line: what it runs, with which settings."""
        ...

    def run(self) -> Outputs:
        """Results of one pass over the files."""
        ...

    def latencies_s(self) -> Sequence[float]:
        """Seconds of each batch of the last pass: its first byte asked for to its results handed over.

        Empty where the system cannot tell.
        """
        ...

    def close(self) -> None: ...


MakeSystem = Callable[[Sequence[Path]], System]
