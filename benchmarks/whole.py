"""The whole run: against the sum of its stages measured alone, and against a plain PyTorch loop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.backends.load import load_engine
from ..engine.batch import Encoded, Rows
from ..engine.decoders.interface import DecodeOptions
from ..engine.decoders.make import DecoderName, make_decoder
from ..engine.lanes import CACHE_MICRO_BATCH, LaneOptions
from ..engine.sinks.open import open_sink
from ..engine.sinks.run_dir import RunDirectory
from .measure import Spread, ratio
from .process import Round, SystemProcess
from .systems.interface import System
from .systems.torch_plain import TorchPlain
from .systems.vdali_system import VdaliSystem

BATCH_SIZE = 32
WORKERS = 2
SEED = 0


def measure_stages(model: Path, files: Sequence[Path], *, rounds: int) -> dict[str, Any]:
    """CPU milliseconds per image of a `vdali run` into Parquet, and of read, decode, engine and sink alone.

    All in one process and in alternation; each stage alone works on the same micro-batches on one thread.
    """
    stages = _StagesAlone(model, files)
    names = ("read", "decode", "infer", "sink", "whole")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names:
            spent = getattr(stages, name)()
            if number:  # the first round warms up
                seconds[name].append(spent)
    stages.close()
    count = len(files)
    sums = [sum(seconds[name][i] for name in names[:-1]) for i in range(rounds)]
    return {
        "images": count,
        "cpu_ms_per_sample": {name: Spread.of([1e3 * s / count for s in seconds[name]]).to_json() for name in names},
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


def _cpu_of(work: Any) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def measure_against_torch(model: Path, name: str, files: Sequence[Path], *, rounds: int) -> dict[str, Any]:
    """Vdali and the plain PyTorch loop over the same files, each in its own process, in alternation."""
    systems = {
        "vdali": SystemProcess(partial(_vdali, model), files),
        "torch": SystemProcess(partial(_torch, model, name), files),
    }
    rows: dict[str, list[Round]] = {key: [] for key in systems}
    for number in range(rounds + 1):
        for key, system in systems.items():
            measured = system.run()
            if number:  # the first round warms up
                rows[key].append(measured)
    ours, theirs = (system.outputs() for system in systems.values())
    report = {
        "images": len(files),
        "systems": {key: _row(systems[key].description, rows[key], len(files)) for key in systems},
        "throughput_over_torch": ratio(
            [row.wall_s for row in rows["torch"]], [row.wall_s for row in rows["vdali"]]
        ).to_json(),
        "lowest_cosine": float(_cosine(ours, theirs).min()),
    }
    for system in systems.values():
        system.close()
    return report


def _row(description: str, rounds: Sequence[Round], count: int) -> dict[str, Any]:
    return {
        "description": description,
        "throughput_samples_per_s": Spread.of([count / row.wall_s for row in rounds]).to_json(),
        "cpu_ms_per_sample": Spread.of([1e3 * row.cpu_s / count for row in rounds]).to_json(),
        "peak_rss_bytes": max(row.peak_rss_bytes for row in rounds),
    }


def _cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    x, y = a.astype(np.float64), b.astype(np.float64)
    cosine: NDArray[np.float64] = (x * y).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1))
    return cosine


def _vdali(model: Path) -> System:
    return VdaliSystem(model, LaneOptions(batch_size=BATCH_SIZE), device="cpu")


def _torch(model: Path, name: str) -> System:
    import timm
    import torch

    engine = load_engine(model, device="cpu").engine
    engine.close()
    torch.manual_seed(SEED)
    network = timm.create_model(name, pretrained=False, num_classes=0)
    return TorchPlain(network, engine.spec.preprocess, batch_size=BATCH_SIZE, workers=WORKERS)
