"""A whole run against the sum of its stages, each measured alone: what the engine around them costs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.backends.load import load_engine
from ..engine.batch import Encoded, Rows
from ..engine.decoders.interface import DecodeOptions
from ..engine.decoders.make import DecoderName, make_decoder
from ..engine.lanes import CACHE_MICRO_BATCH
from ..engine.sinks.open import open_sink
from ..engine.sinks.run_dir import RunDirectory
from .measure import Spread, alternate, ratio

BATCH_SIZE = 32


def measure_stages(model: Path, files: Sequence[Path], *, rounds: int) -> dict[str, Any]:
    """CPU milliseconds per image of a `vdali run` into Parquet, and of read, decode, engine and sink alone.

    All in one process and in alternation; each stage alone works on the same micro-batches on one thread.
    """
    stages = _StagesAlone(model, files)
    parts = {"read": stages.read, "decode": stages.decode, "infer": stages.infer, "sink": stages.sink}
    seconds = alternate({**parts, "whole": stages.whole}, rounds=rounds)
    stages.close()
    sums = [sum(seconds[name][i] for name in parts) for i in range(rounds)]
    return {
        "model": model.stem,
        "images": len(files),
        "cpu_ms_per_sample": {
            name: Spread.of([1e3 * spent / len(files) for spent in found]).to_json() for name, found in seconds.items()
        },
        "whole_over_sum_of_stages": ratio(seconds["whole"], sums).to_json(),
    }


class _StagesAlone:
    """Each method does one stage for all files and returns the CPU seconds that it took."""

    def __init__(self, model: Path, files: Sequence[Path]) -> None:
        self._model = model
        self._files = files
        self._engine = load_engine(model, device="cpu").engine
        self._decoder = make_decoder(
            DecoderName.TURBO, self._engine.spec.preprocess, DecodeOptions(), max_batch=CACHE_MICRO_BATCH
        )
        height, width = self._engine.spec.preprocess.size
        self._out = np.empty((CACHE_MICRO_BATCH, height, width, 3), np.uint8)
        self._samples = [Encoded(str(path), path.read_bytes()) for path in files]
        self._pixels = self._decoder.decode(self._samples[:CACHE_MICRO_BATCH], self._out).pixels.copy()
        self._vectors: NDArray[np.float32] = np.zeros((CACHE_MICRO_BATCH, 1), np.float32)

    def read(self) -> float:
        return _cpu_of(lambda: [path.read_bytes() for path in self._files])

    def decode(self) -> float:
        return _cpu_of(lambda: [self._decoder.decode(group, self._out) for group in self._groups()])

    def infer(self) -> float:
        def infer_all() -> None:
            for group in self._groups():
                self._vectors = self._engine.infer(self._pixels[: len(group)])["embedding"]

        return _cpu_of(infer_all)

    def sink(self) -> float:
        with tempfile.TemporaryDirectory() as folder:
            run = RunDirectory(Path(folder) / "out", spec=self._engine.spec, fingerprint_parts={})
            sink = open_sink(run)

            def write() -> None:
                for group in self._groups():
                    vectors = self._vectors[: len(group)]
                    columns = {"embedding": vectors, "salvaged": np.zeros(len(group), bool)}
                    sink.write(Rows([sample.id for sample in group], columns), [])
                sink.commit()

            spent = _cpu_of(write)
            sink.close()
            run.close()
        return spent

    def whole(self) -> float:
        from ..api import run_options
        from ..engine.job import run

        with tempfile.TemporaryDirectory() as folder:
            options = run_options(
                list(self._files), model=self._model, out=Path(folder) / "out", batch_size=BATCH_SIZE, device="cpu"
            )
            return run(options).cpu_s

    def close(self) -> None:
        self._decoder.close()
        self._engine.close()

    def _groups(self) -> list[list[Encoded]]:
        return [self._samples[i : i + CACHE_MICRO_BATCH] for i in range(0, len(self._samples), CACHE_MICRO_BATCH)]


def _cpu_of(work: Callable[[], object]) -> float:
    started_s = time.process_time()
    work()
    return time.process_time() - started_s
