"""PyTorch module to core: eval mode, fixed picture size, any batch.

PyTorch has two exporters. Tracing takes 1 to 8 seconds and gives clean graphs, but fixes silently what Python code
decides on from a tensor; it warns where that may have happened. ``torch.export`` follows or refuses such code, and
knows antialiased resizes (position embeddings), but takes 10 seconds to 2 minutes, fails on some models (of timm's,
maxvit and beit), and turns AdaptiveAvgPool2d into index arithmetic. So a trace without a warning is used; after a
warning or a failure torch.export is tried, and the trace used if that fails for another reason than a decision on
values. All are verified alike.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import ModelProto

from ..engine.errors import ModelError, UsageError
from ..engine.preprocess import ColorOrder, Preprocess
from ..engine.spec import Task
from .core import Core, Gives
from .graph import BATCH, prune, simplify
from .options import ExportOptions
from .session import Run
from .torch_model import TorchModel, no_stdout, quiet
from .verify import check_class_ids, expected_rows, trial_pictures

OPSET = 18
"""The opset that torch.export's translations are written in, so that nothing is converted. Reduce nodes and Resize have
their present form since 18, LayerNormalization since 17."""

_DECIDES_ON_VALUES = "GuardOnDataDependentSymNode"
"""What torch.export raises where a trace would hold the branch that the example took."""

_QUICK_S = 1.0
"""Networks that take two pictures in less run on one thread: on a busy machine the barriers between a small network's
many short steps cost more than the other threads give (efficientnet_lite0 beside 8 other processes: 15 s against 3)."""

Made = TypeVar("Made")

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
    with _one_thread():
        started = time.perf_counter()
        picked = _OneOutput(module, _key_of(_first_output(module, example, model), model)).eval()
        quick = time.perf_counter() - started < _QUICK_S
    with _one_thread() if quick else nullcontext():
        with quiet():
            expected = expected_rows(_reference(picked, model.preprocess), pictures, what=model.name)
        proto = _exported(picked, example, model.name, report)
    is_mask = model.task is Task.SEGMENT and expected.dtype.kind in "iu"
    if is_mask:
        check_class_ids(expected)
    elif expected.dtype != np.float32:
        raise ModelError(f"{model.name} gives {expected.dtype}, vdali needs float32. Give it another output.")
    prune(proto, proto.graph.output[0].name)
    simplify(proto)
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
        gives=Gives.LABELS if is_mask else Gives.RAW,
        raw_is_mask=is_mask,
        classes=model.classes,
        label_offset=options.label_offset,
        normalize=options.normalize,
        weights=model.weights,
        source=f"{model.source} through torch {torch.__version__}{dropped}",
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
        with quiet(), torch.inference_mode():
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
    """The better of what the two exporters make, by the rule at the top of this file."""
    report(f"Exporting {name} with PyTorch {torch.__version__}.")
    traced, why_not = _attempt(lambda: _by_tracing(module, example))
    if traced is not None and not traced[1]:
        return traced[0]
    doubt = f"cannot trace it ({why_not})" if traced is None else "may have traced it wrongly"
    report(f"The tracing exporter {doubt}: torch.export follows (10 seconds to 2 minutes).")
    program, why_neither = _attempt(lambda: _by_torch_export(module, example))
    if program is not None:
        return program
    if why_neither.startswith(_DECIDES_ON_VALUES):
        raise ModelError(
            f"{name} decides in Python on the values of a tensor, which no graph can follow: {why_neither}. "
            "Rewrite that with torch.where."
        )
    if traced is not None:
        report(f"torch.export cannot ({why_neither}): the trace is used, and checked like any other.")
        return traced[0]
    raise ModelError(f"PyTorch cannot export {name}. Its tracing exporter: {why_not}. torch.export: {why_neither}.")


def _attempt(export: Callable[[], Made]) -> tuple[Made | None, str]:
    """Result of an exporter, or None and the reason in one line."""
    try:
        return export(), ""
    except Exception as error:  # torch's exporters raise anything
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        return None, f"{type(cause).__name__}: {' '.join(str(cause).split())[:300]}"


def _by_torch_export(module: torch.nn.Module, example: torch.Tensor) -> ModelProto:
    with quiet():
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=[_INPUT],
            output_names=[_OUTPUT],
            dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        )
    assert program is not None
    return program.model_proto


def _by_tracing(module: torch.nn.Module, example: torch.Tensor) -> tuple[ModelProto, bool]:
    """Traced graph, and whether Python may have looked at a tensor's values or sizes on the way."""
    from torch.jit import TracerWarning  # type: ignore[attr-defined]

    with no_stdout(), quiet(), tempfile.TemporaryDirectory(prefix="vdali-export-") as folder:
        draft = str(Path(folder) / "model.onnx")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always", TracerWarning)
            torch.onnx.export(
                module,
                (example,),
                draft,
                dynamo=False,
                opset_version=OPSET,
                input_names=[_INPUT],
                output_names=[_OUTPUT],
                dynamic_axes={_INPUT: {0: BATCH}, _OUTPUT: {0: BATCH}},
            )
        looked = any(issubclass(entry.category, TracerWarning) for entry in seen)
        return onnx.load(draft), looked
