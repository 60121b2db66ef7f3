"""ONNX Runtime's CUDA provider: its bindings, streams and sessions, with the provider played by the one of the CPU."""

from __future__ import annotations

import gc
import inspect
import mmap
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import gpus
from fake_plans import LARGEST, SIZE, Buffers, means, pictures
from models import mean_colour_model, tiny_classifier
from onnx import TensorProto, helper
from vdali.engine.backends import onnxruntime_cuda
from vdali.engine.backends.interface import DeviceEngine
from vdali.engine.backends.onnxruntime_cuda import OnnxRuntimeCudaEngine, operators_on_cpu
from vdali.engine.cuda.device import CudaBuffer, CudaDevice
from vdali.engine.errors import DeviceError, InferError, ModelError


class FakeCudaSession:
    """A real session of the CPU provider whose batches run on the played GPU, when their turn on the stream comes."""

    alive = 0

    def __init__(self, path, device, stream) -> None:
        self._session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self._device, self.stream = device, stream
        self.fails = ""
        FakeCudaSession.alive += 1

    def __del__(self) -> None:
        FakeCudaSession.alive -= 1

    def get_inputs(self):
        return self._session.get_inputs()

    def get_outputs(self):
        return self._session.get_outputs()

    def run(self, names, feeds):
        return self._session.run(names, feeds)

    def io_binding(self) -> FakeBinding:
        return FakeBinding()

    def run_with_iobinding(self, iobinding, run_options) -> None:
        assert run_options.get_run_config_entry("disable_synchronize_execution_providers") == "1"
        if self.fails:
            raise RuntimeError(self.fails)
        runtime, session = self._device.cuda.runtime, self._session

        def kernel() -> None:
            feeds = {name: runtime.array(buffer) for name, buffer in iobinding.inputs.items()}
            for name, value in zip(iobinding.outputs, session.run(list(iobinding.outputs), feeds), strict=True):
                runtime.array(iobinding.outputs[name])[...] = value

        runtime.enqueue(self.stream, kernel)


class FakeBinding:
    """Tensors by name, at the addresses that were bound."""

    def __init__(self) -> None:
        self.inputs: dict[str, CudaBuffer] = {}
        self.outputs: dict[str, CudaBuffer] = {}

    def bind_input(self, name, device_type, device_id, element_type, shape, buffer_ptr) -> None:
        assert (device_type, device_id) == ("cuda", 0)
        self.inputs[name] = CudaBuffer(buffer_ptr, tuple(shape), element_type)

    def bind_output(self, name, device_type="cpu", device_id=0, element_type=None, shape=None, buffer_ptr=None) -> None:
        assert (device_type, device_id) == ("cuda", 0)
        self.outputs[name] = CudaBuffer(buffer_ptr, tuple(shape), element_type)


@pytest.fixture
def sessions(monkeypatch) -> None:
    """Sessions are played; FakeCudaSession counts those that somebody uses."""
    monkeypatch.setattr(
        onnxruntime_cuda, "_session", lambda path, spec, device, stream: FakeCudaSession(path, device, stream)
    )
    FakeCudaSession.alive = 0


@pytest.fixture
def engine(sessions, runtime, tmp_path):
    engine = OnnxRuntimeCudaEngine(mean_colour_model(tmp_path / "m.onnx", SIZE), CudaDevice(0, runtime=runtime))
    yield engine
    engine.close()
    assert runtime.memory == {}
    gc.collect()  # an error that was raised may hold a session
    assert FakeCudaSession.alive == 0


def test_a_model_is_a_device_engine_whose_outputs_are_known_from_the_first_picture(engine):
    assert isinstance(engine, DeviceEngine)
    assert engine.name == "onnxruntime:CUDAExecutionProvider"
    assert engine.output_specs(5)["embedding"].shape == (5, 3)
    for seed, rows in enumerate((8, 1, 8)):
        assert np.allclose(engine.infer(pictures(rows, seed))["embedding"], means(pictures(rows, seed)), atol=1e-3)


def test_labels_are_int64(sessions, runtime, tmp_path):
    engine = OnnxRuntimeCudaEngine(tiny_classifier(tmp_path / "m.onnx"), CudaDevice(0, runtime=runtime))
    found = engine.infer(np.zeros((3, 16, 16, 3), np.uint8))
    assert {name: (value.dtype.name, value.shape) for name, value in found.items()} == {
        "top_scores": ("float32", (3, 5)),
        "top_labels": ("int64", (3, 5)),
    }
    engine.close()


def test_a_context_writes_the_rows_of_its_batch_into_the_slots_buffers(engine):
    stream = engine.device.new_stream("stream")
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    before = buffers.run(context, pictures(LARGEST))
    got = buffers.run(context, pictures(3, 1))
    assert np.allclose(got[:3], means(pictures(3, 1)), atol=1e-3)
    assert np.array_equal(got[3:], before[3:])
    context.close()
    buffers.close()
    stream.close()


def test_contexts_of_one_stream_share_a_session_and_the_last_one_ends_it(engine):
    first, second = engine.device.new_stream("first"), engine.device.new_stream("second")
    assert FakeCudaSession.alive == 1  # of the first picture
    contexts = [engine.new_context(first) for _ in range(3)]
    assert FakeCudaSession.alive == 1  # that one's weights are given back
    other = engine.new_context(second)
    assert FakeCudaSession.alive == 2
    buffers = Buffers(engine, second)
    with pytest.raises(ValueError, match="another stream"):
        contexts[0].enqueue(buffers.pixels, buffers.outputs, 1, stream=second)
    buffers.close()
    for context in contexts:
        assert FakeCudaSession.alive == 2
        context.close()
        context.close()
    assert FakeCudaSession.alive == 1
    other.close()
    assert FakeCudaSession.alive == 0
    assert engine.infer(pictures(2))["embedding"].shape == (2, 3)
    first.close()
    second.close()


def test_what_the_runtime_refuses_is_an_infer_error(engine):
    stream = engine.device.new_stream("stream")
    context, buffers = engine.new_context(stream), Buffers(engine, stream)
    context._session.fails = "no kernel image"
    with pytest.raises(InferError, match="ONNX Runtime failed on a batch of 2: no kernel image"):
        buffers.start(context, 2)
    context._session.fails = ""
    assert np.allclose(buffers.run(context, pictures(2))[:2], means(pictures(2)), atol=1e-3)
    context.close()
    buffers.close()
    stream.close()


def test_the_played_calls_have_the_parameters_of_the_real_ones():
    for fake, cls in ((FakeBinding, ort.IOBinding), (FakeCudaSession, ort.InferenceSession)):
        for name, value in vars(fake).items():
            if not name.startswith("_") and name.startswith(("bind", "run_with", "io_b")):
                real = inspect.signature(getattr(cls, name)).parameters
                assert list(inspect.signature(value).parameters) == list(real), name


def test_the_options_that_would_be_ignored_if_they_were_unknown_are_known_to_the_library():
    """Sessions and runs take any option and say nothing; the provider refuses one that it does not know."""
    (library,) = (Path(ort.__file__).parent / "capi").glob("onnxruntime_pybind11_state*.so")
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for word in (b"disable_synchronize_execution_providers", b"session.record_ep_graph_assignment_info"):
            assert content.find(b"\0" + word + b"\0") > 0, word


def session_on_cpu(path):
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def test_operators_on_pictures_that_are_left_to_the_cpu_are_named(tmp_path):
    found = operators_on_cpu(session_on_cpu(tiny_classifier(tmp_path / "m.onnx")))
    assert {"AveragePool", "MatMul", "Softmax", "TopK"} <= set(found)


def test_operators_on_shapes_may_stay_on_the_cpu(tmp_path):
    """As ONNX Runtime itself places them; every vision transformer with a free batch has some."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], end=1),
        helper.make_node("Concat", ["shape", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", None]) for name in ("x", "y")]
    rest = onnx.numpy_helper.from_array(np.array([-1]), "rest")
    graph = helper.make_graph(nodes, "shapes", ends[:1], ends[1:], [rest])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    assert operators_on_cpu(session_on_cpu(tmp_path / "m.onnx")) == []


def test_what_onnxruntime_prints_does_not_reach_stdout_or_stderr(runtime, tmp_path, monkeypatch, capfd):
    """Results go to stdout; what the provider misses is in the error's message."""
    if gpus().count:
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr(ort, "preload_dlls", lambda: sys.stdout.write("Failed to load libcublasLt.so.13"))
    device = CudaDevice(0, runtime=runtime)
    with pytest.raises(DeviceError, match="CUDA provider"):
        OnnxRuntimeCudaEngine(mean_colour_model(tmp_path / "m.onnx", SIZE), device)
    device.close()
    assert capfd.readouterr() == ("", "")


def test_an_unusable_file_is_a_model_error_and_a_missing_provider_a_device_error(runtime, tmp_path):
    device = CudaDevice(0, runtime=runtime)
    path = tmp_path / "m.onnx"
    path.write_bytes(b"weights")
    with pytest.raises(ModelError, match=r"Cannot read .* as an ONNX file"):
        OnnxRuntimeCudaEngine(path, device)
    if gpus().count:
        pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceError, match=r"its CUDA provider on cuda:0: libcuda\.so\.1: cannot open shared object"):
        OnnxRuntimeCudaEngine(mean_colour_model(path, SIZE), device)
    device.close()
    assert runtime.memory == {}
    assert runtime.queues == {}
