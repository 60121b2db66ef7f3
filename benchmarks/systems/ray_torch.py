"""Ray Data with PyTorch: tasks that load photos and run the model, one for each CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ...engine.errors import DeviceError
from ...engine.spec import OUTPUT_NAMES, ModelSpec
from .interface import Outputs, SystemOptions
from .network import Network
from .torch_photos import tensor_photo

_BLOCKS_PER_CPU = 4


class RayTorch:
    """A Ray Data job for each pass; its workers live on and keep the network between passes. On the CPU only."""

    def __init__(self, spec: ModelSpec, files: Sequence[Path], options: SystemOptions) -> None:
        ray: Any = import_module("ray")
        self._data: Any = import_module("ray.data")
        if options.on_gpu:
            raise DeviceError("The Ray Data system of this comparison runs on the CPU. Use --device cpu.")
        ray.init(num_cpus=options.cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        self._data.DataContext.get_current().enable_progress_bars = False
        self._ray = ray
        self._spec = spec
        self._options = options
        self._files = files

    def describe(self) -> str:
        import torch

        return (
            f"Ray Data {self._ray.__version__}, {self._options.cpus} tasks at a time, each torchvision.io decode, "
            f"v2 transforms and torch {torch.__version__} eager channels-last fp32, batch {self._options.batch_size}"
        )

    def run(self) -> Outputs:
        blocks = min(len(self._files), _BLOCKS_PER_CPU * self._options.cpus)
        paths = [{"index": index, "path": str(path)} for index, path in enumerate(self._files)]
        job = self._data.from_items(paths, override_num_blocks=blocks)
        job = job.map_batches(partial(_results, text=self._spec.dumps()), batch_size=self._options.batch_size)
        rows = sorted(job.take_all(), key=lambda row: int(row["index"]))
        return {name: np.stack([row[name] for row in rows]) for name in OUTPUT_NAMES[self._spec.task]}

    def latencies_s(self) -> Sequence[float]:
        return ()

    def close(self) -> None:
        self._ray.shutdown()


def _results(batch: dict[str, Any], *, text: str) -> dict[str, Any]:
    """One batch of paths to results, in a worker of Ray."""
    import torch

    network, spec = _network(text)
    pixels = torch.stack([tensor_photo(Path(path), spec.preprocess) for path in batch["path"]])
    with torch.inference_mode():
        values = network.of_levels(pixels)
    return {"index": batch["index"], **dict(zip(OUTPUT_NAMES[spec.task], [v.numpy() for v in values], strict=True))}


@cache
def _network(text: str) -> tuple[Network, ModelSpec]:
    import torch

    torch.set_num_threads(1)
    spec = ModelSpec.loads(text, file="the model")
    return Network(spec, channels_last=True), spec
