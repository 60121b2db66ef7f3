"""ONNX Runtime on the CPU as an engine: one session, shared by all lanes."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cpu import has_vnni
from ..errors import DeviceError, InferError, ModelError
from ..spec import INPUT_NAME, METADATA_KEY, OUTPUT_NAMES, ModelSpec, Precision
from .content import external_locations, model_content

CPU = "CPUExecutionProvider"


class OnnxRuntimeEngine:
    """A vdali ONNX file on ONNX Runtime's CPU provider.

    ``threads`` are intra-op threads: 1 where each of several lanes calls ``infer``. On an x86 CPU without VNNI an int8
    model computes in fp32 between its Q/DQ, which ``name`` says.
    """

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        self._session = _session(path, threads)
        self.name = f"onnxruntime:{self._session.get_providers()[0]}"
        self.spec = spec_of_session(self._session, path)
        if self.spec.precision in (Precision.INT8, Precision.INT8_FP16) and _int8_saturates():
            self.name += " (int8 computed in fp32: this CPU has no VNNI)"
        self.content = model_content(path)
        self._outputs = list(OUTPUT_NAMES[self.spec.task])
        check_signature(self._session, self.spec, path)

    def infer(self, pixels: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
        """Outputs by name for uint8 [n, height, width, 3]; raises InferError when the runtime fails."""
        try:
            values = self._session.run(self._outputs, {INPUT_NAME: pixels})
        except Exception as error:  # its exceptions share no base but Exception
            raise InferError("runtime_error", f"ONNX Runtime failed on a batch of {len(pixels)}: {error}") from error
        outputs = dict(zip(self._outputs, values, strict=True))
        for name, value in outputs.items():
            if len(value) != len(pixels):
                raise InferError(
                    "wrong_rows", f"Output '{name}' has {len(value)} rows for a batch of {len(pixels)}. Export again."
                )
        return outputs

    def close(self) -> None:
        del self._session


def session_options(threads: int) -> Any:
    """Options that every session has: few threads, none of them spinning, no lines on stderr."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _session(path: Path, threads: int) -> Any:
    import onnxruntime as ort

    options = session_options(threads)
    if _int8_saturates():
        options.add_session_config_entry("session.disable_quant_qdq", "1")  # no effect on models without Q/DQ
    try:
        return ort.InferenceSession(str(path), options, providers=[CPU])
    except Exception as error:  # its exceptions share no base but Exception
        _check_data_files(path)
        reason = str(error).rstrip(".")
        if "NOT_IMPLEMENTED" in reason:
            raise DeviceError(
                f"ONNX Runtime's CPU provider has no kernel for {path}: {reason}. Run it on a GPU, or at another "
                "precision: a CPU has none for bf16."
            ) from error
        raise ModelError(f"ONNX Runtime cannot load {path}: {reason}. Export the model again.") from error


def _check_data_files(path: Path) -> None:
    """Raise ModelError in plainer words than ONNX Runtime's where a readable model lacks external data."""
    try:
        names = external_locations(path)
    except ModelError:
        return
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise ModelError(
            f"{path} keeps weights in {', '.join(missing)}, which is missing in {path.parent}. Put it there, or export "
            "again."
        )


def _int8_saturates() -> bool:
    """Whether ONNX Runtime's int8 kernels add pairs of products in 16 bits here.

    On EfficientNet-Lite0 that costs 25 points of top-1.
    """
    return platform.machine().lower() in ("x86_64", "amd64") and not has_vnni()


def spec_of_session(session: Any, path: Path) -> ModelSpec:
    """What the file says of itself; raises ModelError where it says nothing."""
    text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
    if text is None:
        names = ", ".join(f"{value.name} {value.shape} {value.type}" for value in session.get_inputs())
        raise ModelError(
            f"{path} has no vdali metadata, so its preprocessing and task are unknown (its inputs: {names}). "
            f"Export it: vdali export {path} --task classify|embed|segment --resize 256 --crop 224 "
            f"--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 -o {path.stem}.vdali.onnx"
        )
    return ModelSpec.loads(text, file=str(path))


def check_signature(session: Any, spec: ModelSpec, path: Path) -> None:
    """Raise ModelError unless names, type and shape are as the spec promises and the batch is not fixed."""
    inputs = session.get_inputs()
    height, width = spec.preprocess.size
    found = [(value.name, value.type, list(value.shape)) for value in inputs]
    fits = (
        len(inputs) == 1
        and inputs[0].name == INPUT_NAME
        and inputs[0].type == "tensor(uint8)"
        and list(inputs[0].shape)[1:] == [height, width, 3]
    )
    if not fits:
        raise ModelError(
            f"{path} takes {found}, its metadata promises {INPUT_NAME}: uint8 [n, {height}, {width}, 3]. "
            "Export the model again."
        )
    if isinstance(inputs[0].shape[0], int):
        raise ModelError(f"{path}: the batch is fixed at {inputs[0].shape[0]}. Export the model again.")
    missing = set(OUTPUT_NAMES[spec.task]) - {value.name for value in session.get_outputs()}
    if missing:
        raise ModelError(f"{path} lacks the outputs {sorted(missing)} of task {spec.task}. Export the model again.")
