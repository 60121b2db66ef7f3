"""What a plan is made of and bound to: two plans with equal keys do the same on the same machine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..gpu_probe import GpuProbe
from ..spec import ModelSpec, Precision
from .flavour import TITLES, Flavour
from .options import CURRENT, PlanOptions

CONTENT_CHANGED = "model content changed"
DIGEST_LETTERS = 20
"""How much of a key's digest is in the names of its files; the sidecar holds all of it."""


@dataclass(frozen=True, slots=True)
class PlanKey:
    """Everything that makes a plan what it is.

    ``model_content`` is the SHA-256 of the ONNX file and its external data: weights, graph, preprocessing. A plan
    built for named targets is bound to those; any other is bound to ``gpu``, ``compute_capability`` and
    ``driver_major`` of the machine that built it (None where it is not).
    """

    model_content: str
    precision: str
    batch: str
    flavour: str
    flavour_version: str
    targets: tuple[str, ...]
    gpu: str | None
    compute_capability: str | None
    driver_major: str | None
    tf32: bool
    workspace_bytes: int
    optimization_level: int
    hardware_compatibility: str
    version_compatible: bool
    aux_streams: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "targets": list(self.targets)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PlanKey:
        """Key from a sidecar; raises TypeError for missing or unknown fields."""
        return cls(**{**values, "targets": tuple(values["targets"])})

    @property
    def bound_to(self) -> str:
        """The GPUs that the plan is for, in words: ``sm89, sm120`` or ``NVIDIA L4 (sm89)``."""
        if self.gpu is not None and self.compute_capability is not None:
            return f"{self.gpu} ({sm_name(self.compute_capability)})"
        return ", ".join(self.targets) or "sm80 and later"

    def digest(self) -> str:
        """SHA-256 (hex) of all fields."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


def plan_key(content: str, precision: Precision, options: PlanOptions, flavour: Flavour, gpus: GpuProbe) -> PlanKey:
    """Key of the plan that these options give on this machine's first GPU; ``options.tf32`` must be settled.

    The timing cache is no part of it: it changes how long a build takes, not what is built.
    """
    bound = gpus.gpus[0] if gpus.count and (not flavour.is_rtx or CURRENT in options.targets) else None
    return PlanKey(
        model_content=content,
        precision=precision.value,
        batch=str(options.batch),
        flavour=flavour.name,
        flavour_version=flavour.version,
        targets=options.targets,
        gpu=bound.name if bound else None,
        compute_capability=bound.compute_capability if bound else None,
        driver_major=gpus.driver.split(".")[0] if bound else None,
        tf32=bool(options.tf32),
        workspace_bytes=options.workspace_bytes,
        optimization_level=options.optimization_level,
        hardware_compatibility=options.hardware_compatibility.value,
        version_compatible=options.version_compatible,
        aux_streams=options.aux_streams,
    )


def differences(old: PlanKey, new: PlanKey) -> list[str]:
    """Fields in which two keys differ, as words: ``model content changed``, ``TensorRT-RTX version 1.6 -> 1.7``."""
    return [
        _difference(field.name, getattr(old, field.name), getattr(new, field.name), new)
        for field in fields(PlanKey)
        if getattr(old, field.name) != getattr(new, field.name)
    ]


def spec_differences(old: ModelSpec, new: ModelSpec) -> list[str]:
    """Names of what changed in a model's spec, such as ``mean`` and ``std``."""
    before, after = _flat(old), _flat(new)
    return sorted(name for name in before if before[name] != after[name])


def _flat(spec: ModelSpec) -> dict[str, Any]:
    values = spec.to_json()
    preprocess = values.pop("preprocess")
    return {**values, **preprocess}


def _difference(name: str, old: Any, new: Any, key: PlanKey) -> str:
    if name == "model_content":
        return CONTENT_CHANGED
    if name == "gpu":
        return f"other GPU: {old} -> {new}"
    label = f"{TITLES[key.flavour]} version" if name == "flavour_version" else name.replace("_", " ")
    return f"{label} {_words(old)} -> {_words(new)}"


def sm_name(compute_capability: str) -> str:
    """``sm89`` for ``8.9``."""
    return "sm" + compute_capability.replace(".", "")


def _words(value: Any) -> str:
    return (", ".join(value) or "any") if isinstance(value, tuple) else str(value)
