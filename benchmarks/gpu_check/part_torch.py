"""PyTorch as an engine in the production lane: correct, overlapped, measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...engine.backends.torch import TorchEngine
from ...engine.cuda.device import CudaDevice
from .engine_checks import engine_checks
from .record import Check, CheckFailedError, Found, MissingError


def checks() -> Sequence[Check]:
    from .network_torch import cpu_rows, torch_network_engine

    def open_engine() -> TorchEngine:
        _require_cuda()
        return torch_network_engine(CudaDevice(0))

    return (Check("memory of PyTorch, in place and in order", _foreign), *engine_checks(open_engine, cpu_rows))


def _require_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise MissingError(f"PyTorch {torch.__version__} finds no CUDA. Install a build for CUDA that fits the driver.")


def _foreign() -> Found:
    import torch

    _require_cuda()
    device = CudaDevice(0)
    stream = device.new_stream("foreign")
    tensor = torch.arange(12, dtype=torch.uint8, device="cuda:0").reshape(3, 4)
    back = device.allocate_pinned((3, 4), np.uint8)
    stream.submit(lambda: device.copy(back, device.view(tensor, stream=stream), stream=stream))
    stream.synchronize()
    if not np.array_equal(back, np.arange(12, dtype=np.uint8).reshape(3, 4)):
        raise CheckFailedError(f"expected 0 to 11, found {back.reshape(-1).tolist()}")
    device.release(back)
    stream.close()
    device.close()
    return Found(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
