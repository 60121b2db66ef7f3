"""A plan in TensorRT's hands: deserialized, its tensors known, ready to make execution contexts.

One code path for ``tensorrt`` 11.x and ``tensorrt_rtx`` 1.x; what the latter alone has is in functions that call the
module ``rtx``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DeviceError, ModelError
from ..plans.flavour import Flavour
from ..slots import BufferSpec
from ..spec import INPUT_NAME, OUTPUT_NAMES, ModelSpec

if TYPE_CHECKING:
    import tensorrt as trt
    import tensorrt_rtx as rtx

SCRATCH_BYTES = 256
"""Least scratch of a context, which is also the alignment that TensorRT asks for."""

_FAULTS_OF_THE_MACHINE = frozenset({"OLD_CUDA_DRIVER", "OLD_CUDA_RUNTIME", "INSUFFICIENT_GPU_MEMORY", "CUDA_ERROR"})

OUTPUT_DTYPES: dict[str, type[np.float32 | np.int64 | np.uint8]] = {
    "top_scores": np.float32,
    "top_labels": np.int64,
    "embedding": np.float32,
    "mask": np.uint8,
}


@dataclass(frozen=True, slots=True)
class PlanTensors:
    """What goes in and out at the largest batch, and the smallest batch that the plan takes."""

    smallest: int
    pixels: BufferSpec
    outputs: dict[str, BufferSpec]

    @property
    def largest(self) -> int:
        return self.pixels.shape[0]


class LoadedPlan:
    """Runtime and engine of the plan at ``path``. The GPU has to be the calling thread's current one.

    Raises ModelError when TensorRT refuses the plan, or its tensors are not those of ``spec``.
    """

    def __init__(self, path: Path, flavour: Flavour, spec: ModelSpec, *, host_code: bool) -> None:
        self.flavour = flavour
        self._making = threading.Lock()
        self._runtime = _runtime(flavour, host_code=host_code)
        with flavour.log.slice():
            self._engine = _deserialize(flavour, self._runtime, path)
        self._config = _runtime_config(flavour.trt, self._engine)
        self._cache = _share_compiled_kernels(flavour.trt, self._config) if flavour.is_rtx else None
        self.scratch_bytes = max(_scratch_bytes(self._engine), SCRATCH_BYTES)
        self.tensors = _tensors(flavour.trt, self._engine, self.new_execution_context(), spec, path)

    def new_execution_context(self) -> Any:
        """A trt.IExecutionContext with no scratch yet. Raises DeviceError when TensorRT cannot make one."""
        with self._making:  # different threads may use different contexts, but not make two at once
            return _new_execution_context(self.flavour, self._engine, self._config)

    def close(self) -> None:
        """Let go of the engine, then of the runtime; every execution context is gone before."""
        self._cache = self._config = None
        self._engine = None
        self._runtime = None


def _runtime(flavour: Flavour, *, host_code: bool) -> trt.Runtime:
    trt: Any = flavour.trt
    try:
        runtime = trt.Runtime(flavour.log.logger)
    except TypeError as error:  # what its bindings raise when the library gives none
        raise DeviceError(f"{flavour.title} gives no runtime: {error}. Run `vdali doctor`.") from error
    if host_code:
        runtime.engine_host_code_allowed = True
    return runtime


def _deserialize(flavour: Flavour, runtime: trt.Runtime, path: Path) -> trt.ICudaEngine:
    try:
        data = path.read_bytes()
    except OSError as error:  # it was whole a moment ago
        raise ModelError(f"Cannot read the plan {path}: {error.strerror or error}. Build it again.") from error
    if flavour.is_rtx:
        _refuse_if_invalid(flavour.trt, flavour, runtime, data, path)
    engine = runtime.deserialize_cuda_engine(data)
    if engine is None:
        raise _unloadable(flavour, path, flavour.log.last_error() or "it does not say why")
    return engine


def _refuse_if_invalid(rtx: Any, flavour: Flavour, runtime: rtx.Runtime, data: bytes, path: Path) -> None:
    """Raise where TensorRT-RTX calls a plan invalid on this GPU: DeviceError when the machine is at fault."""
    validity, diagnostics = runtime.get_engine_validity(data)
    if validity != rtx.EngineValidity.INVALID:
        return
    flags = rtx.EngineInvalidityDiagnostics.__members__.items()
    found = [name for name, flag in flags if int(diagnostics) & flag.value]
    words = ", ".join(name.lower().replace("_", " ") for name in found)
    reason = "; ".join(text for text in (words, flavour.log.last_error()) if text) or "it is invalid on this GPU"
    if _FAULTS_OF_THE_MACHINE.intersection(found):
        raise DeviceError(f"{flavour.title} cannot run plans on this machine: {reason}. Run `vdali doctor`.")
    raise _unloadable(flavour, path, reason)


def _unloadable(flavour: Flavour, path: Path, reason: str) -> ModelError:
    reason = reason.rstrip(".")
    return ModelError(
        f"{flavour.title} cannot load the plan {path}: {reason}. Build it again on this machine: vdali build."
    )


def _runtime_config(trt: Any, engine: trt.ICudaEngine) -> trt.IRuntimeConfig:
    config = engine.create_runtime_config()
    config.set_execution_context_allocation_strategy(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    return config


def _share_compiled_kernels(rtx: Any, config: rtx.IRuntimeConfig) -> rtx.IRuntimeCache:
    """TensorRT-RTX compiles on the GPU: once for all contexts, and before a shape's first batch rather than behind it,
    or times and last digits would change in the middle of a run.
    """
    cache = config.create_runtime_cache()
    if not config.set_runtime_cache(cache):
        raise DeviceError("TensorRT-RTX refuses its own runtime cache. Update tensorrt_rtx, or use the ONNX file.")
    config.dynamic_shapes_kernel_specialization_strategy = rtx.DynamicShapesKernelSpecializationStrategy.EAGER
    return cache


def _scratch_bytes(engine: trt.ICudaEngine) -> int:
    return int(engine.get_device_memory_size_for_profile_v2(0))


def _new_execution_context(
    flavour: Flavour, engine: trt.ICudaEngine, config: trt.IRuntimeConfig
) -> trt.IExecutionContext:
    context = engine.create_execution_context(config)
    if context is None:
        raise DeviceError(
            f"{flavour.title} cannot make one more execution context: {flavour.log.last_error() or 'out of memory'}. "
            "Lower the depth, or free memory of the GPU: nvidia-smi shows who holds it."
        )
    return context


def _tensors(
    trt: Any, engine: trt.ICudaEngine, context: trt.IExecutionContext, spec: ModelSpec, path: Path
) -> PlanTensors:
    """Tensors of the plan, sized by pinning the input at its largest: outputs have no profile of their own."""
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
    outputs = [name for name in names if name not in inputs]
    if inputs != [INPUT_NAME] or set(outputs) != set(OUTPUT_NAMES[spec.task]):
        raise _misfit(path, f"takes {inputs} and gives {outputs}", spec)
    smallest, _, largest = (tuple(shape) for shape in engine.get_tensor_profile_shape(INPUT_NAME, 0))
    if engine.get_tensor_dtype(INPUT_NAME) != trt.DataType.UINT8 or largest[1:] != (*spec.preprocess.size, 3):
        raise _misfit(path, f"takes {engine.get_tensor_dtype(INPUT_NAME).name} {list(largest)}", spec)
    if not context.set_input_shape(INPUT_NAME, largest) or missing_shapes(context):
        raise _misfit(path, f"refuses its own largest batch {list(largest)}", spec)
    types = {np.float32: trt.DataType.FLOAT, np.int64: trt.DataType.INT64, np.uint8: trt.DataType.UINT8}
    found = {}
    for name in OUTPUT_NAMES[spec.task]:
        shape, dtype = tuple(context.get_tensor_shape(name)), engine.get_tensor_dtype(name)
        on_device = engine.get_tensor_location(name) == trt.TensorLocation.DEVICE
        if dtype != types[OUTPUT_DTYPES[name]] or not on_device or shape[0] != largest[0] or -1 in shape:
            place = "" if on_device else " on the host"
            raise _misfit(path, f"gives '{name}' as {dtype.name} {list(shape)}{place}", spec)
        found[name] = BufferSpec(shape, OUTPUT_DTYPES[name])
    return PlanTensors(smallest[0], BufferSpec(largest, np.uint8), found)


def missing_shapes(context: trt.IExecutionContext) -> list[str]:
    """What keeps the outputs' shapes from being known: names of tensors, or TensorRT's words."""
    try:
        return list(context.infer_shapes())
    except RuntimeError as error:
        return [str(error)]


def _misfit(path: Path, found: str, spec: ModelSpec) -> ModelError:
    height, width = spec.preprocess.size
    promised = ", ".join(f"{name}: {np.dtype(OUTPUT_DTYPES[name])}" for name in OUTPUT_NAMES[spec.task])
    return ModelError(
        f"The plan {path} {found}; its sidecar promises {INPUT_NAME}: uint8 [n, {height}, {width}, 3] and {promised}. "
        "Build it again: vdali build."
    )
