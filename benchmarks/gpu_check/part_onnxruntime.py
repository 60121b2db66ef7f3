"""ONNX Runtime's CUDA provider as an engine in the production lane."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.backends.onnxruntime_cuda import OnnxRuntimeCudaEngine
from ...engine.cuda.device import CudaDevice
from .engine_checks import engine_checks
from .network import write_onnx
from .record import Check


@functools.cache
def network_file() -> Path:
    """The network as an ONNX file that lasts as long as the process."""
    folder = Path(tempfile.mkdtemp(prefix="vdali-gpu-check-"))
    return write_onnx(folder / "network.onnx")


@functools.cache
def _cpu_engine() -> Any:
    from ...engine.backends.onnxruntime import OnnxRuntimeEngine

    return OnnxRuntimeEngine(network_file(), threads=4)


def cpu_rows(pixels: NDArray[np.uint8]) -> NDArray[Any]:
    """Embeddings by ONNX Runtime on the CPU."""
    found: NDArray[Any] = _cpu_engine().infer(pixels)["embedding"]
    return found


def checks() -> Sequence[Check]:
    return engine_checks(lambda: OnnxRuntimeCudaEngine(network_file(), CudaDevice(0)), cpu_rows)
