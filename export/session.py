"""ONNX Runtime sessions for checking: on the CPU, by name, with inner tensors exposed on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from ..engine.errors import ModelError

Run = Callable[[NDArray[Any]], Mapping[str, NDArray[Any]]]
"""Outputs by name for one input batch."""

KEEP_QDQ = {"session.disable_quant_qdq": "1"}
"""Session entry that leaves QuantizeLinear and DequantizeLinear in place, with fp32 arithmetic between them: ONNX
Runtime's fused int8 kernels saturate on CPUs without VNNI."""


def read_model(path: Path, *, weights: bool) -> ModelProto:
    """ONNX file, with external data from its own folder where ``weights``; raises ModelError when it is unusable."""
    try:
        return onnx.load(path, load_external_data=weights)
    except (OSError, DecodeError, ValueError, onnx.checker.ValidationError) as error:  # ValueError: data cut short
        raise ModelError(f"Cannot read {path} as an ONNX file: {error}.") from error


def load_tensor(tensor: TensorProto, path: Path) -> None:
    """Read the external data of one tensor of the file ``path``; raises ModelError when that cannot be done."""
    try:
        onnx.external_data_helper.load_external_data_for_tensor(tensor, str(path.parent.resolve()))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"Cannot read the weights '{tensor.name}' of {path}: {error}.") from error
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def open_session(path: Path, *, also: str | None = None) -> Run:
    """Session on the file as it is; with ``also``, that inner tensor is one more output.

    Raises ModelError when ONNX Runtime refuses the file.
    """
    if also is None:
        return run_of(str(path), path)
    model = read_model(path, weights=False)
    if all(value.name != also for value in model.graph.output):
        model.graph.output.append(helper.make_tensor_value_info(also, _kind_of(model, also), None))
    return run_of(model.SerializeToString(), path)


def _kind_of(model: ModelProto, tensor: str) -> int:
    """Element type of an inner tensor: what shape inference finds, else float32."""
    inferred = onnx.shape_inference.infer_shapes(model)
    for value in inferred.graph.value_info:
        if value.name == tensor:
            return int(value.type.tensor_type.elem_type)
    return int(TensorProto.FLOAT)


def run_of(content: str | bytes, path: Path, *, config: Mapping[str, str] | None = None) -> Run:
    """Session on a file's name or bytes; external data is read from the folder of ``path``.

    ``config`` holds session entries. Raises ModelError when ONNX Runtime refuses the model, then or on a batch.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # the default order runs what only outputs read last: with an extreme of each tensor, all tensors at once in memory
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent.resolve()))
    for key, value in (config or {}).items():
        options.add_session_config_entry(key, value)
    try:
        session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no base but Exception
        raise ModelError(f"ONNX Runtime cannot load {path}: {error}.") from error
    names = [value.name for value in session.get_outputs()]
    source = session.get_inputs()[0].name

    def run(batch: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        try:
            values = session.run(names, {source: batch})
        except Exception as error:
            words = " ".join(str(error).split())
            raise ModelError(f"{path.name} cannot run a batch of {len(batch)}: {words[:300]}") from error
        return dict(zip(names, values, strict=True))

    return run
