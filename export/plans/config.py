"""PlanOptions in TensorRT's terms: builder configuration, targets, compatibility, timing cache, batch profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.errors import ModelError, UsageError
from ...engine.plans.options import BatchProfile, HardwareCompatibility, PlanOptions

if TYPE_CHECKING:
    import tensorrt as trt
    import tensorrt_rtx as rtx


def configure(trt: Any, config: trt.IBuilderConfig, options: PlanOptions) -> None:
    """Set what both flavours have. TF32 is on by default in both, so it is always set one way or the other."""
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    config.builder_optimization_level = options.optimization_level
    config.max_aux_streams = options.aux_streams
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if options.tf32:
        config.set_flag(trt.BuilderFlag.TF32)
    else:
        config.clear_flag(trt.BuilderFlag.TF32)


def aim(rtx: Any, config: rtx.IBuilderConfig, targets: tuple[str, ...]) -> None:
    """Set the compute capabilities of a TensorRT-RTX plan; none at all leaves its default, sm80 and later."""
    if targets:
        config.num_compute_capabilities = len(targets)
    for index, target in enumerate(targets):
        if not config.set_compute_capability(rtx.ComputeCapability.__members__[target.upper()], index):
            raise ModelError(f"TensorRT-RTX refuses the target {target}. Leave it out of --target.")


def widen(trt: Any, config: trt.IBuilderConfig, options: PlanOptions) -> None:
    """Set for which other GPUs and versions a ``tensorrt`` plan is meant."""
    levels = {
        HardwareCompatibility.NONE: trt.HardwareCompatibilityLevel.NONE,
        HardwareCompatibility.SAME_COMPUTE_CAPABILITY: trt.HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY,
        HardwareCompatibility.AMPERE_PLUS: trt.HardwareCompatibilityLevel.AMPERE_PLUS,
    }
    config.hardware_compatibility_level = levels[options.hardware_compatibility]
    if options.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)


def attach_timing_cache(config: trt.IBuilderConfig, path: Path) -> Any:
    """Measured kernel times of earlier builds, from ``path`` where they fit this GPU and version, else none.

    The returned cache must outlive the build. Raises UsageError when the file is there and cannot be read.
    """
    try:
        stored = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise UsageError(f"Cannot read the timing cache {path}: {error.strerror}. Give another file.") from error
    cache = config.create_timing_cache(stored)
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


def add_batch_profile(
    builder: trt.Builder,
    config: trt.IBuilderConfig,
    network: trt.INetworkDefinition,
    batch: BatchProfile,
    onnx: Path,
) -> None:
    """Give every input its batch range; raises ModelError for a network whose only dynamic dimension is not the batch.

    A profile for a name that does not exist, or with batch 0, passes TensorRT's own check of profiles.
    """
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        name, shape = tensor.name, tuple(tensor.shape)
        _check_shape(name, shape, onnx)
        rest = shape[1:]
        profile.set_shape(name, (batch.smallest, *rest), (batch.tuned, *rest), (batch.largest, *rest))
    if config.add_optimization_profile(profile) < 0:
        raise ModelError(f"TensorRT refuses the batch profile {batch} for {onnx}. Give another --batch-profile.")


def _check_shape(name: str, shape: tuple[int, ...], onnx: Path) -> None:
    if not shape or shape[0] != -1:
        fixed = f"the batch is fixed at {shape[0]}" if shape else "it has no batch dimension"
        raise ModelError(f"Input '{name}' of {onnx} has the shape {list(shape)}: {fixed}. Export the model again.")
    if -1 in shape[1:]:
        raise ModelError(
            f"Input '{name}' of {onnx} has the shape {list(shape)}: dimensions besides the batch are open. "
            "Export the model again with a fixed picture size."
        )
