"""SPDL for the photos, PyTorch for the model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...engine.spec import ModelSpec
from .interface import Outputs, SystemOptions
from .torch_photos import tensor_photo
from .tuned_network import TunedNetwork

_BATCHES_AHEAD = 2


class SpdlTorch:
    """An SPDL pipeline of threads decodes and resizes through torchvision; the network is that of tuned PyTorch.

    SPDL's own decoder (FFmpeg) is not used: its pixels are some 3 levels away from those that models were trained on.
    """

    def __init__(self, spec: ModelSpec, files: Sequence[Path], options: SystemOptions) -> None:
        self._pipelines: Any = import_module("spdl.pipeline")
        self._network = TunedNetwork(spec, options)
        self._preprocess = spec.preprocess
        self._files = files
        self._options = options
        self._latencies_s: list[float] = []

    def describe(self) -> str:
        return (
            f"SPDL {version('spdl')} pipeline with {self._options.cpus} threads, torchvision.io decode, v2 transforms "
            f"on uint8 tensors; {self._network.describe()}"
        )

    def run(self) -> Outputs:
        outputs, self._latencies_s = self._network.one_pass(self._batches())
        return outputs

    def latencies_s(self) -> Sequence[float]:
        return self._latencies_s

    def close(self) -> None:
        """A pipeline ends with its pass."""

    def _batches(self) -> Iterator[tuple[Any, float]]:
        import torch

        builder = self._pipelines.PipelineBuilder().add_source(self._files)
        builder = builder.pipe(self._load, concurrency=self._options.cpus, output_order="input")
        builder = builder.aggregate(self._options.batch_size).add_sink(_BATCHES_AHEAD)
        pipeline = builder.build(num_threads=self._options.cpus, max_failures=0)
        with pipeline.auto_stop():
            for photos in pipeline.get_iterator():
                yield torch.stack([pixels for pixels, _ in photos]), min(started_s for _, started_s in photos)

    def _load(self, path: Path) -> tuple[Any, float]:
        started_s = time.perf_counter()
        return tensor_photo(path, self._preprocess), started_s
