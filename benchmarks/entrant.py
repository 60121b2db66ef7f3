"""Systems taking turns over the same files; one that fails is out, the others go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from .comparison import Status, SystemRow
from .measure import Spread, alternate, percentile
from .process import Round, SystemFailedError, SystemProcess
from .systems.interface import MakeSystem, Outputs
from .usage import OthersWatch

T = TypeVar("T")


@dataclass(slots=True)
class Entrant:
    """A system in a comparison, whatever becomes of it. ``problem`` ends its part; ``make`` is picklable."""

    label: str
    make: MakeSystem
    problem: SystemFailedError | None = None
    description: str = ""
    peak_memory_bytes: int = 0
    rounds: list[Round] = field(default_factory=list)
    outputs: Outputs | None = None
    _process: SystemProcess | None = None

    def start(self, files: Sequence[Path], gpu: int | None) -> None:
        """Build the system in its process and warm it up."""
        self._process = self._attempt(lambda: SystemProcess(self.make, files, gpu=gpu))
        if self._process is not None:
            self.description = self._process.description
            self.peak_memory_bytes = self._asked(SystemProcess.warm_up) or 0

    def round(self) -> Round | None:
        return self._asked(SystemProcess.run)

    def finish(self, rounds: Sequence[Round | None]) -> None:
        """Keep what the rounds measured, and fetch the outputs of the last one."""
        self.rounds = [found for found in rounds if found is not None]
        self.outputs = self._asked(SystemProcess.outputs)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    def row(self, images: int) -> SystemRow:
        """What it did by itself; status ok, failed or absent."""
        if self.problem is not None:
            status = Status.ABSENT if self.problem.absent else Status.FAILED
            return SystemRow(self.label, status, note=str(self.problem), description=self.description)
        latencies = [seconds for found in self.rounds for seconds in found.latencies_s]
        shares = [found.gpu_utilisation for found in self.rounds if found.gpu_utilisation is not None]
        memories = [found.gpu_memory_bytes for found in self.rounds if found.gpu_memory_bytes is not None]
        return SystemRow(
            self.label,
            Status.OK,
            description=self.description,
            throughput=Spread.of([images / found.wall_s for found in self.rounds]),
            cpu_ms=Spread.of([1e3 * found.cpu_s / images for found in self.rounds]),
            latency_p50_s=percentile(latencies, 0.5) if latencies else None,
            latency_p99_s=percentile(latencies, 0.99) if latencies else None,
            peak_memory_bytes=self.peak_memory_bytes,
            gpu_utilisation=sum(shares) / len(shares) if shares else None,
            gpu_memory_bytes=max(memories, default=None),
        )

    def _asked(self, question: Callable[[SystemProcess], T]) -> T | None:
        process = self._process
        return None if process is None or self.problem is not None else self._attempt(lambda: question(process))

    def _attempt(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except SystemFailedError as error:
            self.problem = error
            return None


def take_turns(
    entrants: Sequence[Entrant],
    files: Sequence[Path],
    *,
    rounds: int,
    say: Callable[[str], None],
    gpu: int | None = None,
) -> float | None:
    """Start and warm up each, run ``rounds`` rounds in turn, and end all processes, whatever happens.

    Returns the share (0..1) of the CPUs that other processes used during the rounds, None where that cannot be told.
    """
    with ExitStack() as stack:
        for entrant in entrants:
            say(f"{entrant.label}: starts and warms up")
            stack.callback(entrant.close)
            entrant.start(files, gpu)
            if entrant.problem is not None:
                say(f"{entrant.label}: {entrant.problem}")
        say(f"{rounds} alternating rounds over {len(files)} images")
        others = OthersWatch()
        found = alternate({entrant.label: entrant.round for entrant in entrants}, rounds=rounds, warmup=0)
        share = others.share(sum(one.cpu_s for rounds_ in found.values() for one in rounds_ if one is not None))
        for entrant in entrants:
            entrant.finish(found[entrant.label])
    return share
