"""vdali itself under the benchmark's boundary: the real data path into a sink that keeps arrays in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...engine.backends.load import load_engine
from ...engine.batch import Failure, Rows, Sample
from ...engine.lanes import LaneOptions, make_scheduler
from ...engine.pipeline import run
from ...engine.stages import StageTime


class MemorySink:
    """Sink that keeps the embeddings of a benchmark in memory, in order."""

    def __init__(self) -> None:
        self.vectors: list[NDArray[np.float32]] = []
        self.failures: list[Failure] = []

    def is_done(self, entry: Sample | Failure) -> bool:
        del entry
        return False

    def write(self, rows: Rows, failures: Sequence[Failure]) -> None:
        if len(rows):
            self.vectors.append(np.asarray(rows.columns["embedding"], np.float32))
        self.failures.extend(failures)

    def commit(self) -> None:
        """Nothing is kept on disk."""

    def close(self) -> None:
        """Nothing is open."""


class VdaliSystem:
    """The engine as `vdali run` sets it up, on the CPU unless ``device`` says otherwise."""

    name = "vdali"

    def __init__(self, model: Path, options: LaneOptions, *, device: str = "auto") -> None:
        self._loaded = load_engine(model, device=device, threads=options.threads)
        self._options = options
        self._scheduler, self._plan = make_scheduler(self._loaded.engine, options, self._loaded.engine.spec.preprocess)

    def describe(self) -> str:
        plan = self._plan
        return (
            f"vdali, {self._loaded.engine.name}, decoder {plan.decoder}, {plan.lanes} lanes x {plan.threads} thread, "
            f"micro-batch {plan.micro_batch}, {self._loaded.engine.spec.precision}"
        )

    def run(self, files: Sequence[Path]) -> NDArray[np.float32]:
        sink = MemorySink()
        samples = (Sample(str(path), path.read_bytes) for path in files)
        run(samples, self._scheduler, sink, batch_size=self._plan.micro_batch)
        if sink.failures:
            raise AssertionError(f"{len(sink.failures)} benchmark photos failed, first: {sink.failures[0]}")
        return np.concatenate(sink.vectors)

    def times(self) -> dict[str, StageTime]:
        """Time per stage over all runs so far."""
        return self._scheduler.times()

    def close(self) -> None:
        self._scheduler.close()
        self._loaded.engine.close()
