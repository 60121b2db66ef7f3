"""What a plan is asked to be, checked before TensorRT sees it: TensorRT accepts much that makes no sense."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ..errors import DeviceError, UsageError
from ..gpu_probe import GpuProbe
from .flavour import Flavour

CURRENT = "current"
DEFAULT_WORKSPACE_BYTES = 4 << 30


class HardwareCompatibility(StrEnum):
    """Which other GPUs a ``tensorrt`` plan runs on; wider is slower."""

    NONE = "none"
    SAME_COMPUTE_CAPABILITY = "same_compute_capability"
    AMPERE_PLUS = "ampere_plus"


@dataclass(frozen=True, slots=True)
class BatchProfile:
    """Batch sizes that a plan accepts: smallest, the one it is tuned for, largest. Raises UsageError."""

    smallest: int = 1
    tuned: int = 32
    largest: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.smallest <= self.tuned <= self.largest:
            raise UsageError(
                f"The batch profile {self} makes no sense. Give smallest,tuned,largest with "
                "1 <= smallest <= tuned <= largest, such as 1,32,64."
            )

    @classmethod
    def parse(cls, text: str) -> BatchProfile:
        """Profile from ``1,32,64``; raises UsageError."""
        if not re.fullmatch(r"\d+,\d+,\d+", text):
            raise UsageError(f"'{text}' is no batch profile. Give smallest,tuned,largest, such as 1,32,64.")
        return cls(*map(int, text.split(",")))

    def __str__(self) -> str:
        return f"{self.smallest},{self.tuned},{self.largest}"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How a plan is built. Raises UsageError for values that no TensorRT takes.

    ``tf32`` None: on exactly where the model's precision is tf32. ``targets`` are for TensorRT-RTX: compute
    capabilities such as ``sm89``, or ``current`` for this machine's GPU; none at all gives a plan for sm80 and later.
    ``hardware_compatibility``, ``version_compatible`` and ``timing_cache`` (a file, made when missing) are for
    ``tensorrt``. ``aux_streams`` 0 keeps a plan's work on the caller's stream.
    """

    batch: BatchProfile = BatchProfile()
    tf32: bool | None = None
    workspace_bytes: int = DEFAULT_WORKSPACE_BYTES
    optimization_level: int = 3
    hardware_compatibility: HardwareCompatibility = HardwareCompatibility.NONE
    version_compatible: bool = False
    targets: tuple[str, ...] = ()
    timing_cache: Path | None = None
    aux_streams: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", _in_order(self.targets))
        if self.workspace_bytes < 1:
            raise UsageError(f"A workspace of {self.workspace_bytes} bytes is too small. Give at least 1 byte.")
        if not 0 <= self.optimization_level <= 5:
            raise UsageError(f"No optimization level {self.optimization_level}. Use 0 (fast build) to 5 (fast plan).")
        if self.aux_streams < 0:
            raise UsageError(f"{self.aux_streams} auxiliary streams make no sense. Use 0 or more.")


def parse_targets(text: str) -> tuple[str, ...]:
    """Targets from ``sm89,sm120``, lower case, each once, in order; raises UsageError."""
    return _in_order(tuple(text.split(",")))


def known_targets(flavour: Flavour) -> tuple[str, ...]:
    """Compute capabilities that this TensorRT-RTX builds for, such as ``sm89``."""
    rtx = flavour.trt
    names = (name.lower() for name in rtx.ComputeCapability.__members__)
    return _in_order(tuple(name for name in names if name.startswith("sm")))


def check_options(options: PlanOptions, flavour: Flavour, gpus: GpuProbe) -> None:
    """Raises UsageError for options that this flavour has not, and DeviceError for a GPU that is not there."""
    if flavour.is_rtx:
        _check_for_rtx(options, flavour, gpus)
    elif options.targets:
        raise UsageError(
            f"{flavour.title} builds for this machine's GPU only, not for {', '.join(options.targets)}. "
            "Leave --target out, or use --flavour tensorrt_rtx."
        )


def _check_for_rtx(options: PlanOptions, flavour: Flavour, gpus: GpuProbe) -> None:
    refused = {
        "--hardware-compatibility": options.hardware_compatibility is not HardwareCompatibility.NONE,
        "--version-compatible": options.version_compatible,
        "--timing-cache": options.timing_cache is not None,
    }
    for option, used in refused.items():
        if used:
            raise UsageError(f"{flavour.title} has no {option}. Leave it out, or use --flavour tensorrt.")
    known = known_targets(flavour)
    for target in set(options.targets) - {*known, CURRENT}:
        other = " H100 and H200 need --flavour tensorrt." if target == "sm90" else ""
        raise UsageError(f"{flavour.title} builds for {', '.join(known)}, not for {target}.{other}")
    if CURRENT in options.targets and not gpus.count:
        raise DeviceError(f"--target current needs a GPU: {gpus.reason}. Name a target, such as --target {known[-1]}.")


def _in_order(targets: tuple[str, ...]) -> tuple[str, ...]:
    found = {target.strip().lower() for target in targets}
    for target in found:
        if not re.fullmatch(rf"sm\d+|{CURRENT}", target):
            raise UsageError(f"No target '{target}'. Give compute capabilities such as sm89,sm120, or current.")
    if CURRENT in found and len(found) > 1:
        raise UsageError("The target current stands alone: name every compute capability instead, such as sm89,sm120.")
    return tuple(sorted(found, key=lambda target: (len(target), target)))
