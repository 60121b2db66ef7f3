"""Each system in a process of its own, so that threads, allocators and memory of one do not touch another's."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .systems.interface import System


@dataclass(frozen=True, slots=True)
class Round:
    """One pass over the files: seconds of wall clock, CPU seconds of the process and its workers, peak memory."""

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int


class SystemProcess:
    """A system that ``make`` builds inside a fresh process; ``make`` is a picklable callable."""

    def __init__(self, make: Callable[[], System], files: Sequence[Path]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, list(files), theirs), daemon=False)
        self._process.start()
        self.name, self.description = self._received()

    def run(self) -> Round:
        """One timed pass."""
        self._pipe.send("run")
        value: Round = self._received()
        return value

    def outputs(self) -> NDArray[np.float32]:
        """Outputs of the last pass."""
        self._pipe.send("outputs")
        value: NDArray[np.float32] = self._received()
        return value

    def close(self) -> None:
        self._pipe.send("close")
        self._process.join()

    def _received(self) -> Any:
        value = self._pipe.recv()
        if isinstance(value, BaseException):
            self._process.join()
            raise value
        return value


def _serve(make: Callable[[], System], files: Sequence[Path], pipe: Connection) -> None:
    try:
        system = make()
        pipe.send((system.name, system.describe()))
        outputs: NDArray[np.float32] | None = None
        while (command := pipe.recv()) != "close":
            if command == "run":
                wall, cpu = time.perf_counter(), _cpu_s()
                outputs = system.run(files)
                pipe.send(Round(time.perf_counter() - wall, _cpu_s() - cpu, _peak_rss()))
            else:
                pipe.send(outputs)
        system.close()
    except Exception as error:
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _cpu_s() -> float:
    """CPU seconds of this process, its threads, and its workers that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def _peak_rss() -> int:
    return 1024 * max(
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    )
