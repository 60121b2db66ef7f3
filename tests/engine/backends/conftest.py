"""A TensorRT that is played, in both flavours."""

from __future__ import annotations

import pytest
from fake_plans import opened
from fake_tensorrt import FakeTensorRT


@pytest.fixture(params=[False, True], ids=["tensorrt", "tensorrt_rtx"])
def trt(request, runtime) -> FakeTensorRT:
    return FakeTensorRT(runtime, is_rtx=request.param)


@pytest.fixture
def engine(trt, runtime, tmp_path):
    engine = opened(trt, runtime, tmp_path)
    yield engine
    engine.close()


@pytest.fixture
def stream(engine):
    stream = engine.device.new_stream("stream")
    yield stream
    stream.close()
