"""PyTorch as an engine: a real module, on a GPU that is played where the real one cannot be had."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from conftest import gpus
from fake_plans import LARGEST, SIZE, Buffers, means, pictures
from models import plain_preprocess
from vdali.engine.backends.interface import DeviceEngine
from vdali.engine.backends.torch import TorchEngine
from vdali.engine.cuda.device import CudaDevice
from vdali.engine.errors import DeviceError, InferError
from vdali.engine.spec import ModelSpec, Task

torch = pytest.importorskip("torch")


class MeanColour(torch.nn.Module):
    """Mean levels of each picture, in half precision where asked."""

    def __init__(self, dtype=torch.float32, rows_lost: int = 0) -> None:
        super().__init__()
        self.dtype, self.rows_lost = dtype, rows_lost
        self.fails = False
        self.meanwhile = lambda: None

    def forward(self, pixels):
        self.meanwhile()
        if self.fails:
            raise RuntimeError("CUDA out of memory")
        rows = len(pixels) - (self.rows_lost if len(pixels) > 1 else 0)
        return (pixels[:rows].float().mean(dim=(1, 2)).to(self.dtype),)


class FakeTorchEngine(TorchEngine):
    """PyTorch's half on the CPU: a tensor is the played GPU's memory, and a stream waits before work begins on it."""

    def __init__(self, module, device, runtime) -> None:
        self.runtime = runtime
        super().__init__(module, ModelSpec("m", Task.EMBED, plain_preprocess(SIZE)), device, content="c0ffee")

    @contextmanager
    def on(self, stream):
        self.runtime.cudaStreamSynchronize(stream)
        with torch.inference_mode():
            yield

    def tensor(self, buffer):
        return torch.from_numpy(self.runtime.array(buffer))

    def _version(self, device):
        return torch.__version__


@pytest.fixture
def module():
    return MeanColour()


@pytest.fixture
def engine(module, runtime):
    engine = FakeTorchEngine(module, CudaDevice(0, runtime=runtime), runtime)
    yield engine
    engine.close()
    assert runtime.memory == {}


def test_without_cuda_it_is_a_device_error_and_never_the_cpu(module, cuda):
    if gpus().count:
        pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceError, match=r"PyTorch .* cannot use cuda:0: it was built without CUDA"):
        TorchEngine(module, ModelSpec("m", Task.EMBED, plain_preprocess(SIZE)), cuda)


def test_a_module_is_a_device_engine_whose_outputs_are_known_from_the_first_picture(engine):
    assert isinstance(engine, DeviceEngine)
    assert engine.name == f"torch:{torch.__version__}"
    (spec,) = engine.output_specs(5).values()
    assert (spec.shape, np.dtype(spec.dtype)) == ((5, 3), np.float32)
    for seed, rows in enumerate((8, 1, 8)):
        assert np.allclose(engine.infer(pictures(rows, seed))["embedding"], means(pictures(rows, seed)), atol=1e-3)


def test_a_context_writes_the_rows_of_its_batch_into_the_slots_buffers(engine):
    stream = engine.device.new_stream("stream")
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    before = buffers.run(context, pictures(LARGEST))
    got = buffers.run(context, pictures(3, 1))
    assert np.allclose(got[:3], means(pictures(3, 1)), atol=1e-3)
    assert np.array_equal(got[3:], before[3:])
    with pytest.raises(ValueError, match="another stream"):
        context.enqueue(buffers.pixels, buffers.outputs, 1, stream=engine._host_calls.stream)
    context.close()
    buffers.close()
    stream.close()


def test_the_input_is_free_as_soon_as_it_is_copied(engine, module, runtime):
    """The next picture may be written there before the module has begun."""
    stream = engine.device.new_stream("stream")
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    consumed = stream.new_event()
    before, recorded = runtime.events[consumed.handle], []

    def overwrite() -> None:
        recorded.append(runtime.events[consumed.handle] is not before)
        runtime.array(buffers.pixels).fill(0)

    module.meanwhile = overwrite
    assert np.allclose(buffers.run(context, pictures(2), consumed)[:2], means(pictures(2)), atol=1e-3)
    assert recorded == [True]
    context.close()
    buffers.close()
    stream.close()


def test_a_batch_that_fails_keeps_its_input_since_its_pictures_are_read_again(engine, module):
    stream = engine.device.new_stream("stream")
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    consumed = stream.new_event()
    module.fails = True
    with pytest.raises(InferError):
        buffers.run(context, pictures(2), consumed)
    assert not consumed._marked.is_set()
    context.close()
    buffers.close()
    stream.close()


def test_half_precision_leaves_as_float32(runtime):
    engine = FakeTorchEngine(MeanColour(torch.float16), CudaDevice(0, runtime=runtime), runtime)
    assert np.allclose(engine.infer(pictures(4))["embedding"], means(pictures(4)), atol=0.1)
    engine.close()


def test_what_the_module_raises_is_an_infer_error(engine, module):
    module.fails = True
    with pytest.raises(InferError, match="PyTorch failed on a batch of 2: CUDA out of memory"):
        engine.infer(pictures(2))
    module.fails = False
    assert engine.infer(pictures(2))["embedding"].shape == (2, 3)


@pytest.mark.parametrize("lost", [1, 3])
def test_a_module_that_loses_rows_is_an_infer_error(runtime, lost):
    engine = FakeTorchEngine(MeanColour(rows_lost=lost), CudaDevice(0, runtime=runtime), runtime)
    with pytest.raises(InferError, match=rf"has {4 - lost} rows for a batch of 4"):
        engine.infer(pictures(4))
    engine.close()


def test_a_module_that_fails_on_the_first_picture_leaves_nothing_behind(runtime, module):
    module.fails = True
    device = CudaDevice(0, runtime=runtime)
    with pytest.raises(InferError, match="on the first picture"):
        FakeTorchEngine(module, device, runtime)
    device.close()
    assert runtime.memory == {}
    assert runtime.queues == {}
