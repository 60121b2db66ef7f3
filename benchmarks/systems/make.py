"""From a system's name to a system, built in the process that will run it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from .interface import System, SystemOptions
from .network import spec_of


class SystemName(StrEnum):
    """Systems that a comparison knows."""

    VDALI = "vdali"
    TORCH = "torch"
    TORCH_TUNED = "torch-tuned"
    TORCH_COMPILED = "torch-compiled"
    DALI_TORCH = "dali-torch"
    SPDL_TORCH = "spdl-torch"
    RAY = "ray"


def make_system(name: SystemName, model: Path, options: SystemOptions, files: Sequence[Path]) -> System:
    """System ``name`` for a vdali file; all but vdali itself run the PyTorch module that the file came from.

    Raises ModuleNotFoundError or DeviceError where what it needs is not installed, ModelError for a model that it
    cannot run.
    """
    if name is SystemName.VDALI:
        from .vdali_system import VdaliSystem

        return VdaliSystem(model, files, options)
    spec = spec_of(model)
    if name is SystemName.TORCH:
        from .torch_plain import TorchPlain

        return TorchPlain(spec, files, options)
    if name in (SystemName.TORCH_TUNED, SystemName.TORCH_COMPILED):
        from .torch_tuned import TorchTuned

        return TorchTuned(spec, files, options, compiled=name is SystemName.TORCH_COMPILED)
    if name is SystemName.DALI_TORCH:
        from .dali_torch import DaliTorch

        return DaliTorch(spec, files, options)
    if name is SystemName.SPDL_TORCH:
        from .spdl_torch import SpdlTorch

        return SpdlTorch(spec, files, options)
    from .ray_torch import RayTorch

    return RayTorch(spec, files, options)
