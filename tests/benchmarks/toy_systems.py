"""Importable by name from another process: a small network, and systems that go wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SIZE = (32, 32)


def network() -> Any:
    """Module and preprocessing of an embedder: 16 mean colours through one random layer."""
    import torch

    module = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 8))
    return module, {"size": SIZE, "resize": (36, 36)}


class Counting:
    """System that gives the number of its pass, and takes CPU time in a worker of its own."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        self.passes = 0

    def describe(self) -> str:
        return f"counts over {len(self.files)} files"

    def run(self) -> dict[str, np.ndarray]:
        self.passes += 1
        if len(self.files) == 0:
            raise ValueError("nothing\nto count")
        return {"embedding": np.full((len(self.files), 2), self.passes, np.float32)}

    def latencies_s(self) -> list[float]:
        return [0.25] * self.passes

    def close(self) -> None:
        pass


class Killed(Counting):
    """System whose process is killed in its first pass."""

    def run(self) -> dict[str, np.ndarray]:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        return {}


class Endless(Counting):
    """System whose pass does not end, in a worker of its own; the worker's process id is in the file."""

    def run(self) -> dict[str, np.ndarray]:
        worker = subprocess.Popen(["sleep", "600"])
        self.files[0].write_text(str(worker.pid))
        worker.wait()
        return {}


def needs_a_package(files: Sequence[Path]) -> Counting:
    import a_package_that_nobody_has  # noqa: F401

    return Counting(files)


def says_it_is_missing(files: Sequence[Path]) -> Counting:
    from vdali.engine.errors import MissingExtraError

    raise MissingExtraError("spdl", "none", "Comparing with SPDL")


class Batched(Counting):
    """System that sleeps so that its images/s double with the batch up to 4, then fall; at ``most`` memory ends."""

    def __init__(self, batch_size: int, most: int | None, files: Sequence[Path]) -> None:
        super().__init__(files)
        self.rate = {1: 200.0, 2: 400.0, 4: 800.0, 8: 600.0}[batch_size]
        self.is_too_large = most is not None and batch_size >= most

    def run(self) -> dict[str, np.ndarray]:
        if self.is_too_large:
            raise MemoryError("no room for 8 bytes")
        time.sleep(len(self.files) / self.rate)
        return super().run()
