"""A plain ONNX file as a core: one float picture input, NCHW or NHWC, any opset, external data in its own folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper

from ..engine.backends.content import model_content
from ..engine.errors import ModelError, UsageError
from ..engine.preprocess import Preprocess
from ..engine.spec import METADATA_KEY, Task
from .core import Core, Gives, Layout, normalised
from .graph import (
    BATCH,
    dims_of,
    graph_inputs,
    opset_of,
    prune,
    simplify,
    tensor_names,
)
from .options import ExportOptions, stated_preprocess
from .session import Run, open_session, read_model
from .unwrap import unwrap
from .verify import check_class_ids, expected_rows, trial_pictures

OLDEST_OPSET = 13
"""Softmax, Squeeze and Slice took their present form in 13; older files are converted to 17."""

_TARGET_OPSET = 17


@dataclass(frozen=True, slots=True)
class _Input:
    """Picture input of a file; ``batch`` and ``size`` are None where the file leaves them open."""

    name: str
    layout: Layout
    batch: int | None
    size: tuple[int, int] | None


def core_from_onnx(path: Path, options: ExportOptions, report: Callable[[str], None]) -> Core:
    """Core of ``path``, which stays as it is.

    Raises UsageError when task or preprocessing are not stated, ModelError when the file cannot be used.
    """
    model = read_model(path, weights=True)
    _refuse_vdali_file(model, path)
    if options.task is None:
        raise UsageError(f"{path} does not say what it gives: add --task classify, embed or segment.")
    source = _input_of(model, path)
    output = _output_of(model, options.output, path)
    size = _size_of(source, options, path)
    preprocess = stated_preprocess(size, options, model=str(path))
    if source.batch is not None:
        report(f"{path.name} has its batch fixed at {source.batch}: it is made dynamic, then checked.")
    run = open_session(path, also=output)
    reference = _reference(run, output, source, preprocess)
    expected = expected_rows(reference, trial_pictures(preprocess.size), what=str(path))
    _check_kind(expected, options.task, output)
    model = _prepared(model, source, output, preprocess, path)
    bare = unwrap(model, options.task, class_axis=1 if source.layout is Layout.NCHW else 3)
    raw_shape = expected.shape[1:]
    if bare.gives is Gives.LABELS:
        raw_shape = _shape_of(path, bare.raw, source, preprocess)
    is_mask = options.task is Task.SEGMENT and bare.gives is Gives.RAW and expected.dtype.kind in "iu"
    if is_mask:
        check_class_ids(expected)
    dropped = f", first {options.label_offset} of its classes dropped" if options.label_offset else ""
    return Core(
        model=model,
        name=path.stem,
        task=options.task,
        preprocess=preprocess,
        input_name=source.name,
        raw_name=bare.raw,
        raw_shape=raw_shape,
        expected=expected,
        gives=Gives.LABELS if is_mask else bare.gives,
        layout=source.layout,
        class_axis=bare.class_axis,
        raw_is_mask=is_mask,
        label_offset=options.label_offset,
        normalize=options.normalize,
        weights=path.name,
        source=f"{path.name} (sha256 {model_content(path)[:16]}), output {output}{dropped}",
    )


def _refuse_vdali_file(model: ModelProto, path: Path) -> None:
    if any(entry.key == METADATA_KEY for entry in model.metadata_props):
        raise ModelError(
            f"{path} is a vdali model already. Use it as it is: vdali run --model {path}; "
            "to change its options, export its source again."
        )


def _input_of(model: ModelProto, path: Path) -> _Input:
    inputs = graph_inputs(model)
    described = ", ".join(f"{value.name} {dims_of(value)}" for value in inputs) or "none"
    if len(inputs) != 1 or len(dims_of(inputs[0])) != 4:
        raise ModelError(f"{path} must have one picture input with 4 dimensions; its inputs are: {described}.")
    (value,) = inputs
    if value.type.tensor_type.elem_type != TensorProto.FLOAT:
        kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        raise ModelError(
            f"{path}: input {value.name} is {kind}, vdali needs a float32 network. Convert the file first."
        )
    batch, first, _, last = dims = dims_of(value)
    if first == 3 or (isinstance(first, str) and last != 3):
        layout, size = Layout.NCHW, dims[2:]
    elif last == 3:
        layout, size = Layout.NHWC, dims[1:3]
    else:
        raise ModelError(
            f"{path} must take pictures with 3 channels, [n, 3, h, w] or [n, h, w, 3]; it takes {described}."
        )
    height, width = (side if isinstance(side, int) else None for side in size)
    known = (height, width) if height is not None and width is not None else None
    return _Input(value.name, layout, batch if isinstance(batch, int) else None, known)


def _output_of(model: ModelProto, wanted: str | None, path: Path) -> str:
    names = [value.name for value in model.graph.output]
    if wanted is None:
        if len(names) == 1:
            return str(names[0])
        raise UsageError(f"{path} has {len(names)} outputs: {', '.join(names)}. Choose one with --output.")
    if wanted not in tensor_names(model):
        raise UsageError(f"{path} has no tensor '{wanted}'. Its outputs are: {', '.join(names)}.")
    return wanted


def _size_of(source: _Input, options: ExportOptions, path: Path) -> tuple[int, int] | None:
    """Input size that the file fixes, which ``--crop`` may repeat but not change."""
    if source.size is not None and options.crop not in (None, source.size):
        raise UsageError(
            f"{path} takes {source.size} pixels (height, width), --crop says {options.crop}. Leave it out."
        )
    return source.size


def _reference(run: Run, output: str, source: _Input, preprocess: Preprocess) -> Run:
    """The file itself on uint8 pictures, in batches of the size that it fixes."""

    def reference(pixels: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        values = normalised(pixels, preprocess, source.layout)
        if source.batch is None:
            return {output: run(values)[output]}
        parts = []
        for start in range(0, len(values), source.batch):
            part = values[start : start + source.batch]
            filled = np.concatenate([part, np.repeat(part[-1:], source.batch - len(part), axis=0)])
            parts.append(run(filled)[output][: len(part)])
        return {output: np.concatenate(parts)}

    return reference


def _shape_of(path: Path, tensor: str, source: _Input, preprocess: Preprocess) -> tuple[int, ...]:
    """Shape of an inner tensor, batch left out."""
    run = _reference(open_session(path, also=tensor), tensor, source, preprocess)
    return run(trial_pictures(preprocess.size)[:1])[tensor].shape[1:]


def _check_kind(expected: NDArray[Any], task: Task, output: str) -> None:
    integers = expected.dtype.kind in "iu"
    if expected.dtype == np.float32 or (integers and task is Task.SEGMENT):
        return
    raise ModelError(
        f"Output {output} is {expected.dtype}; task {task} needs float32"
        f"{' or integer class ids' if task is Task.SEGMENT else ''}. Choose another --output."
    )


def _prepared(model: ModelProto, source: _Input, output: str, preprocess: Preprocess, path: Path) -> ModelProto:
    """The graph up to ``output``, batch dynamic, size fixed, opset current, constants folded."""
    if opset_of(model) < OLDEST_OPSET:
        try:
            model = onnx.version_converter.convert_version(model, _TARGET_OPSET)
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"{path} has opset {opset_of(model)} and cannot be converted to {_TARGET_OPSET}: {error}. "
                "Export it again from its framework with opset 17."
            ) from error
    prune(model, output)
    (value,) = graph_inputs(model)
    height, width = preprocess.size
    sizes: list[int | str] = [3, height, width] if source.layout is Layout.NCHW else [height, width, 3]
    value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, TensorProto.FLOAT, [BATCH, *sizes]))
    simplify(model)
    if source.batch is not None:
        _free_reshapes(model, source.batch)
    return model


def _free_reshapes(model: ModelProto, batch: int) -> None:
    """Let reshapes that repeat a fixed batch follow the real one; verification tells whether that was right."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        tensor = weights.get(node.input[1]) if node.op_type == "Reshape" else None
        if tensor is None:
            continue
        shape = numpy_helper.to_array(tensor).copy()
        if len(shape) and shape[0] == batch:
            shape[0] = 0 if -1 in shape else -1
            name = f"{node.name or node.output[0]}/free_shape"
            model.graph.initializer.append(numpy_helper.from_array(shape, name))
            node.input[1] = name
