"""A GPU that is played, for the tests of all that runs on one."""

from __future__ import annotations

import pytest


@pytest.fixture
def runtime():
    from fake_cuda import FakeCudaRuntime

    return FakeCudaRuntime()


@pytest.fixture
def cuda(runtime):
    from vdali.engine.cuda.device import CudaDevice

    device = CudaDevice(0, runtime=runtime)
    yield device
    device.close()
