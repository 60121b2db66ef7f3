"""Plan files away from the cache: is one what its sidecar says, and does it fit this machine?"""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelError
from ..gpu_probe import Gpu
from .files import write_atomically
from .flavour import TITLES, Flavour
from .header import HEADER_BYTES, read_header
from .key import PlanKey, sm_name
from .options import HardwareCompatibility
from .sidecar import PlanSidecar, read_whole, sidecar_path


def open_plan(path: Path) -> PlanSidecar:
    """Sidecar of a plan that is whole and the one described.

    Raises ModelError that says what was expected and found. The plan itself is not loaded: only a GPU can do that.
    """
    if not path.is_file():
        raise ModelError(f"No plan file at {path}. Build one: vdali build MODEL.onnx -o {path}")
    try:
        return read_whole(path)
    except ModelError as error:
        raise _unusable(path, error) from error


def require_fit(path: Path, sidecar: PlanSidecar, flavour: Flavour, gpu: Gpu) -> None:
    """Raise ModelError that names the plan when it is for another TensorRT or another GPU."""
    try:
        check_fit(sidecar.key, flavour, gpu)
    except ModelError as error:
        raise _unusable(path, error) from error


def check_fit(key: PlanKey, flavour: Flavour, gpu: Gpu | None) -> None:
    """Raise ModelError with a short reason when a plan with this key is for another TensorRT or another GPU."""
    if key.flavour != flavour.name or not _version_fits(key, flavour.version):
        raise ModelError(f"it was built by {TITLES[key.flavour]} {key.flavour_version}, here is {flavour.title}")
    if gpu is not None and not _gpu_fits(key, gpu):
        here = f"{gpu.name} ({sm_name(gpu.compute_capability)})"
        raise ModelError(f"it was built for {key.bound_to}, here is {here}")


def copy_plan(plan: Path, to: Path) -> None:
    """Copy a plan and its sidecar; ``to`` is whole or absent. Raises VdaliError when they do not fit on the disk."""
    write_atomically(to, plan.read_bytes())
    write_atomically(sidecar_path(to), sidecar_path(plan).read_bytes())


def _version_fits(key: PlanKey, version: str) -> bool:
    """The same version, or, for a version-compatible plan, a later one of the same major number."""
    if not key.version_compatible:
        return version == key.flavour_version
    built, here = _numbers(key.flavour_version), _numbers(version)
    return built[0] == here[0] and here >= built


def _gpu_fits(key: PlanKey, gpu: Gpu) -> bool:
    if key.hardware_compatibility == HardwareCompatibility.AMPERE_PLUS or not (key.gpu or key.targets):
        return _numbers(gpu.compute_capability) >= (8, 0)
    if key.targets and key.gpu is None:
        return sm_name(gpu.compute_capability) in key.targets
    if key.hardware_compatibility == HardwareCompatibility.SAME_COMPUTE_CAPABILITY:
        return gpu.compute_capability == key.compute_capability
    return (gpu.name, gpu.compute_capability) == (key.gpu, key.compute_capability)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _unusable(path: Path, reason: ModelError) -> ModelError:
    return ModelError(
        f"Cannot use the plan {path}: {reason}.{_header_words(path)} Build it again from its ONNX file: vdali build."
    )


def _header_words(path: Path) -> str:
    """What the file itself tells, for a plan whose sidecar is lost or wrong."""
    with open(path, "rb") as file:
        header = read_header(file.read(HEADER_BYTES))
    if header is None:
        return ""
    return f" (Its header: TensorRT-RTX {header.version}, for {', '.join(header.targets)}.)"
