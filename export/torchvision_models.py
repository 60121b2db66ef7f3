"""``torchvision/NAME``: classifiers and segmenters of torchvision, with the preset of their default weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import ModelError
from ..engine.preprocess import Interpolation, Preprocess, ResizeMode
from ..engine.spec import Task
from .options import PRETRAINED, RANDOM, ExportOptions, changed_preprocess
from .torch_model import TorchModel, downloaded, load_state, quiet, seeded, state_from, weights_note

if TYPE_CHECKING:
    import torch

_INCEPTIONS = ("googlenet", "inception_v3")
_WITH_INPUT_TRANSFORM = {"transform_input": True, "init_weights": False}
"""As torchvision builds these two for its pretrained weights: they undo the preset's mean and std inside."""


def imagenet_names() -> tuple[str, ...]:
    """Names of the 1,000 ImageNet classes, in order of their index."""
    from torchvision.models._meta import _IMAGENET_CATEGORIES

    return tuple(_IMAGENET_CATEGORIES)


def load_torchvision(name: str, options: ExportOptions) -> TorchModel:
    """Classifier, its features (task embed) or segmenter of torchvision.

    Raises ModelError for a name that torchvision does not know as one of these, and weights that do not fit.
    """
    import torchvision

    weights, preset, native = _known(name)
    task = options.task or native
    if task is not native and (task, native) != (Task.EMBED, Task.CLASSIFY):
        raise ModelError(f"torchvision/{name} is made to {native}; it cannot {task}.")
    classes = tuple(weights.meta["categories"])
    with quiet():
        module = _build(name, options, weights, native)
        if task is Task.EMBED:
            _drop_classifier(module, len(classes), name)
    note = weights_note(options)
    return TorchModel(
        module=module,
        name=name,
        task=task,
        preprocess=changed_preprocess(_preprocess(preset, native), options),
        weights=f"{note} ({weights.name})" if note == PRETRAINED else note,
        source=f"torchvision/{name} (torchvision {torchvision.__version__})",
        classes=None if task is Task.EMBED else classes,
        output="out" if native is Task.SEGMENT else None,
    )


def _known(name: str) -> tuple[Any, Any, Task]:
    """Default weights, their preset and their task."""
    from torchvision import models
    from torchvision.transforms._presets import ImageClassification, SemanticSegmentation

    try:
        weights = models.get_model_weights(name).DEFAULT
    except ValueError as error:
        known = ", ".join(models.list_models(module=models))
        raise ModelError(f"torchvision has no model '{name}'. Its classifiers are: {known}.") from error
    preset = weights.transforms()
    if isinstance(preset, ImageClassification):
        return weights, preset, Task.CLASSIFY
    if isinstance(preset, SemanticSegmentation):
        return weights, preset, Task.SEGMENT
    raise ModelError(
        f"torchvision/{name} prepares pictures for {type(preset).__name__}; vdali classifies and segments."
    )


def _build(name: str, options: ExportOptions, weights: Any, native: Task) -> torch.nn.Module:
    from torchvision import models

    if options.weights == PRETRAINED:
        return downloaded(
            lambda: models.get_model(name, weights=weights), model=f"torchvision/{name}", host="download.pytorch.org"
        )
    shape: dict[str, Any] = dict(_WITH_INPUT_TRANSFORM) if name in _INCEPTIONS else {}
    if options.weights == RANDOM:
        shape |= {"weights_backbone": None} if native is Task.SEGMENT else {}
        return seeded(lambda: models.get_model(name, weights=None, **shape), options.seed)
    path = Path(options.weights)
    state = state_from(path)
    if native is Task.SEGMENT:
        shape |= {"weights_backbone": None, "aux_loss": any(key.startswith("aux_classifier.") for key in state)}
    module: torch.nn.Module = models.get_model(name, weights=None, **shape)
    load_state(module, state, path, model=f"torchvision/{name}")
    return module


def _drop_classifier(module: torch.nn.Module, count: int, name: str) -> None:
    """Put nothing in the place of the last linear layer: what it read is the embedding."""
    import torch

    found = [
        path
        for path, part in module.named_modules()
        if isinstance(part, torch.nn.Linear) and part.out_features == count
    ]
    if not found:
        raise ModelError(f"torchvision/{name} has no linear classifier to leave out, so it gives no embedding.")
    parent, _, child = found[-1].rpartition(".")
    setattr(module.get_submodule(parent), child, torch.nn.Identity())


def _preprocess(preset: Any, native: Task) -> Preprocess:
    """Torchvision's preset as a spec. Segmenters take any size there; here every picture is squashed to a square."""
    resize = preset.resize_size[0]
    size = resize if native is Task.SEGMENT else preset.crop_size[0]
    return Preprocess(
        size=(size, size),
        resize=(resize, resize),
        mode=ResizeMode.SQUASH if native is Task.SEGMENT else ResizeMode.SHORTER,
        interpolation=Interpolation(preset.interpolation.value),
        mean=tuple(preset.mean),
        std=tuple(preset.std),
    )
