"""vdali itself under the benchmark's boundary: the real data path into a sink that keeps results in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ...engine.backends.interface import Engine
from ...engine.backends.load import load_engine
from ...engine.batch import Column, Failure, Rows, Sample
from ...engine.errors import VdaliError
from ...engine.lanes import LaneOptions, make_scheduler
from ...engine.pipeline import run
from ...engine.spec import OUTPUT_NAMES
from ...export.plans.search import find_plan
from .interface import Outputs, SystemOptions


class MemorySink:
    """Sink that keeps columns in memory, in order, and when each batch came."""

    def __init__(self) -> None:
        self.columns: list[dict[str, Column]] = []
        self.failures: list[Failure] = []
        self.ended: list[tuple[str, float]] = []

    def is_done(self, entry: Sample | Failure) -> bool:
        del entry
        return False

    def write(self, rows: Rows, failures: Sequence[Failure]) -> None:
        if len(rows):
            self.columns.append(dict(rows.columns))
            self.ended.append((rows.ids[0], time.perf_counter()))
        self.failures.extend(failures)

    def commit(self) -> None:
        """Nothing is kept on disk."""

    def close(self) -> None:
        """Nothing is open."""


class VdaliSystem:
    """The engine as `vdali run` sets it up for this device; a file may be there more than once.

    ``around`` makes of the loaded engine the one that the lanes call.
    """

    def __init__(
        self,
        model: Path,
        files: Sequence[Path],
        options: SystemOptions,
        *,
        lanes: LaneOptions | None = None,
        around: Callable[[Engine], Engine] | None = None,
    ) -> None:
        lanes = lanes or LaneOptions(batch_size=options.batch_size)
        self._files = files
        self._loaded = load_engine(model, device=options.device, threads=lanes.threads, find_plan=find_plan)
        engine = around(self._loaded.engine) if around is not None else self._loaded.engine
        self._scheduler, self._plan = make_scheduler(engine, lanes, engine.spec.preprocess)
        self._latencies_s: list[float] = []

    def describe(self) -> str:
        plan = self._plan
        return (
            f"vdali, {self._loaded.engine.name}, {self._loaded.engine.spec.precision}, decoder {plan.decoder}, "
            f"{plan.lanes} lanes x {plan.threads} thread{'s' * (plan.threads > 1)}, micro-batch {plan.micro_batch}"
        )

    def run(self) -> Outputs:
        sink = MemorySink()
        started: dict[str, float] = {}
        ids = [f"{number}: {path}" for number, path in enumerate(self._files)]
        samples = (Sample(name, _reading(name, path, started)) for name, path in zip(ids, self._files, strict=True))
        run(samples, self._scheduler, sink, batch_size=self._plan.micro_batch)
        if sink.failures:
            first = sink.failures[0]
            raise VdaliError(f"{len(sink.failures)} images failed, first {first.id}: {first.message}")
        self._latencies_s = [ended_s - started[first_id] for first_id, ended_s in sink.ended]
        names = OUTPUT_NAMES[self._loaded.engine.spec.task]
        return {name: np.concatenate([np.asarray(columns[name]) for columns in sink.columns]) for name in names}

    def latencies_s(self) -> Sequence[float]:
        return self._latencies_s

    def close(self) -> None:
        self._scheduler.close()
        self._loaded.engine.close()


def _reading(name: str, path: Path, started: dict[str, float]) -> Callable[[], bytes]:
    def read() -> bytes:
        started[name] = time.perf_counter()
        return path.read_bytes()

    return read
