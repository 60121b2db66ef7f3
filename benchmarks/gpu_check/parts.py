"""The parts of the check: each in a process of its own, with a time limit, so that none hides another's result."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from .record import Check, Found

TOTAL_LIMIT_S = 465.0
"""Less than eight minutes with the start of the processes; a part that finds no time left is not run, and said so."""


@dataclass(frozen=True, slots=True)
class Part:
    """``module`` has a function ``checks``; ``needs`` are Python modules without which the part makes no sense.

    ``install`` says how to get them.
    """

    name: str
    module: str
    title: str
    limit_s: float
    needs: tuple[str, ...] = ()
    install: str = ""

    def missing(self) -> list[str]:
        """Of what it needs, the modules that are not installed here."""
        return [name for name in self.needs if not _is_installed(name)]

    def checks(self) -> Sequence[Check]:
        """Its checks; where not even they can be had, one that says why."""
        try:
            found = importlib.import_module(f".{self.module}", __package__).checks()
        except Exception as error:  # a part that cannot begin has failed, and says why
            return (Check("set-up", partial(_raise, error)),)
        return cast("Sequence[Check]", found)


_CUDA = ("numpy", "cuda.bindings", "cuda.core", "platformdirs")
_CUDA_INSTALL = "pip install 'cuda-python>=13,<14' 'nvidia-cuda-nvrtc>=13,<14' numpy platformdirs"

PARTS = (
    Part("device", "part_device", "device layer and scheduler", 60, _CUDA, _CUDA_INSTALL),
    Part("kernels", "part_kernels", "own kernels", 45, _CUDA, _CUDA_INSTALL),
    Part("torch", "part_torch", "PyTorch engine", 75, (*_CUDA, "torch"), "pip install 'vdali[torch]'"),
    Part("dali", "part_dali", "DALI on the GPU", 75, (*_CUDA, "nvidia.dali", "PIL"), "pip install vdali"),
    Part(
        "onnxruntime",
        "part_onnxruntime",
        "ONNX Runtime, CUDA provider",
        60,
        (*_CUDA, "onnxruntime", "onnx"),
        "pip install vdali",
    ),
    Part(
        "tensorrt",
        "part_tensorrt",
        "TensorRT",
        120,
        (*_CUDA, "tensorrt", "onnx", "onnxruntime"),
        "pip install 'vdali[tensorrt]'",
    ),
    Part(
        "tensorrt-rtx",
        "part_tensorrt_rtx",
        "TensorRT-RTX",
        60,
        (*_CUDA, "tensorrt_rtx", "onnx", "onnxruntime"),
        "pip install 'vdali[rtx]'",
    ),
    Part("run", "part_run", "a whole run, GPU against CPU", 90, (*_CUDA, "onnxruntime", "PIL"), "pip install vdali"),
    Part("tests", "part_tests", "tests marked gpu", 240, ("pytest",), "pip install 'vdali[test]'"),
)


def part_named(name: str) -> Part:
    return next(part for part in PARTS if part.name == name)


def _raise(error: Exception) -> Found:
    raise error


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False
