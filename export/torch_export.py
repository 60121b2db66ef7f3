"""PyTorch module to core: eval mode, fixed picture size, any batch.

``torch.export`` is tried first: it refuses what depends on the values of its example instead of fixing it silently, and
it alone knows antialiased resizes (position embeddings). It fails on some models (of timm's, maxvit and beit) that the
older tracing exporter takes; both are verified alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import ModelProto

from ..engine.errors import ModelError, UsageError
from ..engine.preprocess import ColorOrder, Preprocess
from ..engine.spec import Task
from .core import Core
from .graph import BATCH, clean, fold_constants, prune, remove_identities
from .options import ExportOptions
from .session import Run
from .torch_model import TorchModel, quiet
from .verify import expected_rows, trial_pictures

OPSET = 18
"""The opset that torch.export's translations are written in: nothing is converted. Reduce and Resize (antialias) have
their present form since 18, LayerNormalization since 17."""

_INPUT, _OUTPUT = "network_input", "network_output"


class _OneOutput(torch.nn.Module):
    """A module that gives one tensor: itself, or one entry of what it gives."""

    def __init__(self, module: torch.nn.Module, key: str | int | None) -> None:
        super().__init__()
        self.module = module
        self.key = key

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        output: Any = self.module(pictures)
        tensor: torch.Tensor = output if self.key is None else output[self.key]
        return tensor


def core_from_torch(model: TorchModel, options: ExportOptions, report: Callable[[str], None]) -> Core:
    """Core of a module, which is put into eval mode and float32.

    Raises ModelError when the module takes no varying batch, is random, gives NaN, or cannot be exported.
    """
    module = model.module.eval().float().requires_grad_(requires_grad=False)
    pictures = trial_pictures(model.preprocess.size)
    example = _network_input(pictures[:2], model.preprocess)
    with quiet():
        picked = _OneOutput(module, _key_of(_first_output(module, example, model), model)).eval()
        expected = expected_rows(_reference(picked, model.preprocess), pictures, what=model.name)
        proto = _exported(picked, example, model.name, report)
    if expected.dtype != np.float32 and not (expected.dtype.kind in "iu" and model.task is Task.SEGMENT):
        raise ModelError(f"{model.name} gives {expected.dtype}, vdali needs float32. Give it another output.")
    proto = _prepared(proto)
    dropped = f", first {options.label_offset} of its classes dropped" if options.label_offset else ""
    return Core(
        model=proto,
        name=model.name,
        task=model.task,
        preprocess=model.preprocess,
        input_name=proto.graph.input[0].name,
        raw_name=proto.graph.output[0].name,
        raw_shape=expected.shape[1:],
        expected=expected,
        classes=model.classes,
        label_offset=options.label_offset,
        normalize=options.normalize,
        weights=model.weights,
        source=f"{model.source} through torch {torch.__version__}{dropped}",
    )


def _network_input(pixels: NDArray[np.uint8], spec: Preprocess) -> torch.Tensor:
    """What torchvision's ToTensor and Normalize make of uint8 [n, height, width, 3]."""
    values = torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2).float() / 255
    if spec.color_order is ColorOrder.BGR:
        values = values.flip(1)
    mean, std = (torch.tensor(levels).view(1, 3, 1, 1) for levels in (spec.mean, spec.std))
    return (values - mean) / std


def _reference(module: torch.nn.Module, spec: Preprocess) -> Run:
    def reference(pixels: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        with torch.inference_mode():
            return {_OUTPUT: module(_network_input(pixels, spec)).numpy()}

    return reference


def _first_output(module: torch.nn.Module, example: torch.Tensor, model: TorchModel) -> Any:
    try:
        with torch.inference_mode():
            return module(example)
    except Exception as error:  # whatever the module raises
        raise ModelError(
            f"{model.name} fails on pictures of {tuple(example.shape[2:])} pixels (height, width): "
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}. Is --crop its input size?"
        ) from error


def _key_of(output: Any, model: TorchModel) -> str | int | None:
    """Key of the tensor to use in the module's output; None when that is a tensor itself."""
    if isinstance(output, torch.Tensor):
        return None
    if isinstance(output, Mapping):
        keys = [key for key, value in output.items() if isinstance(value, torch.Tensor)]
        wanted: str | int | None = model.output or (keys[0] if len(keys) == 1 else None)
    elif isinstance(output, tuple | list):
        keys = [index for index, value in enumerate(output) if isinstance(value, torch.Tensor)]
        wanted = (
            int(model.output) if model.output and model.output.isdecimal() else (keys[0] if len(keys) == 1 else None)
        )
    else:
        raise ModelError(
            f"{model.name} gives {type(output).__name__}; vdali needs a tensor, or a dict or tuple of them."
        )
    if wanted not in keys:
        raise UsageError(f"{model.name} gives several tensors: {', '.join(map(str, keys))}. Choose one with --output.")
    return wanted


def _exported(module: torch.nn.Module, example: torch.Tensor, name: str, report: Callable[[str], None]) -> ModelProto:
    report(f"Exporting {name} with PyTorch {torch.__version__} (10 seconds to 2 minutes).")
    names: dict[str, Any] = {"input_names": [_INPUT], "output_names": [_OUTPUT], "opset_version": OPSET}
    try:
        dynamic = ({0: torch.export.Dim.DYNAMIC},)
        program = torch.onnx.export(module, (example,), dynamo=True, dynamic_shapes=dynamic, verbose=False, **names)
    except Exception as error:  # torch's exporters raise anything
        first = error
    else:
        assert program is not None
        return program.model_proto
    report(f"torch.export cannot export {name} ({type(first).__name__}); PyTorch's older exporter is used.")
    axes = {_INPUT: {0: BATCH}, _OUTPUT: {0: BATCH}}
    with tempfile.TemporaryDirectory(prefix="vdali-export-") as folder:
        draft = Path(folder) / "model.onnx"
        try:
            torch.onnx.export(module, (example,), draft, dynamo=False, dynamic_axes=axes, **names)
        except Exception as error:
            raise ModelError(
                f"PyTorch cannot export {name}. torch.export: {_reason(first)}. The older exporter: {_reason(error)}."
            ) from error
        return onnx.load(draft)


def _reason(error: Exception) -> str:
    """What a torch exporter means: its cause, in one line."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _prepared(proto: ModelProto) -> ModelProto:
    prune(proto, proto.graph.output[0].name)
    clean(proto)
    remove_identities(proto)
    fold_constants(proto)
    return proto
