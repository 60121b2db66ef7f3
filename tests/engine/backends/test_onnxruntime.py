"""ONNX Runtime as an engine: whole batches, exact rows, no model taken that would not fit, no silent fallback."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import mean_colour_model, red_segmenter, tiny_classifier, with_spec
from onnx import TensorProto, helper
from vdali.engine.backends.load import load_engine
from vdali.engine.backends.onnxruntime import OnnxRuntimeEngine
from vdali.engine.backends.onnxruntime_cuda import OnnxRuntimeCudaEngine
from vdali.engine.errors import DeviceError, InferError, ModelError, UsageError
from vdali.engine.spec import METADATA_KEY, Task

from tests.conftest import gpus

SIZE = (8, 8)

COUNT_THREADS = """
import os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[3])])
from pathlib import Path
import onnxruntime
from vdali.engine.backends.onnxruntime import OnnxRuntimeEngine
from vdali.engine.backends.onnxruntime_cuda import OnnxRuntimeCudaEngine
before = len(os.listdir("/proc/self/task"))
engine = OnnxRuntimeEngine(Path(sys.argv[1]), threads=int(sys.argv[2]))
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (10, *SIZE, 3), dtype=np.uint8)


@pytest.fixture
def model(tmp_path) -> Path:
    return mean_colour_model(tmp_path / "m.onnx", SIZE)


def changed(path: Path, change) -> Path:
    proto = onnx.load(path)
    change(proto)
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize("sizes", [(8, 3, 8, 1), (10, 2, 10)])
def test_outputs_have_exactly_the_rows_of_each_batch_and_equal_the_single_picture_results(model, pixels, sizes):
    engine = OnnxRuntimeEngine(model)
    for size in sizes:
        got = engine.infer(pixels[:size])["embedding"]
        alone = np.concatenate([engine.infer(pixels[i : i + 1])["embedding"] for i in range(size)])
        assert got.shape == (size, 3)
        assert np.array_equal(got, alone)
        assert np.allclose(got, pixels[:size].mean(axis=(1, 2)), atol=1e-3)


def test_a_view_into_a_larger_buffer_is_read_as_its_own_rows_alone(model, pixels):
    buffer = np.full((16, *SIZE, 3), 255, np.uint8)
    buffer[:3] = pixels[:3]
    assert np.allclose(OnnxRuntimeEngine(model).infer(buffer[:3])["embedding"], pixels[:3].mean(axis=(1, 2)), atol=1e-3)


def test_one_session_serves_many_lanes_at_once(model, pixels):
    engine = OnnxRuntimeEngine(model)
    expected = pixels.mean(axis=(1, 2))

    def infer(i: int) -> float:
        rows = pixels[i % 7 : i % 7 + 1 + i % 4]
        return float(np.abs(engine.infer(rows)["embedding"] - expected[i % 7 : i % 7 + len(rows)]).max())

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(infer, range(400))) < 1e-3


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (tiny_classifier, {"top_scores", "top_labels"}),
        (red_segmenter, {"mask"}),
        (mean_colour_model, {"embedding"}),
    ],
)
def test_an_engine_gives_the_outputs_of_its_task(tmp_path, make, names):
    engine = OnnxRuntimeEngine(make(tmp_path / "m.onnx"))
    outputs = engine.infer(np.zeros((2, *engine.spec.preprocess.size, 3), np.uint8))
    assert outputs.keys() == names


def test_an_engine_names_the_provider_that_it_really_uses(model):
    loaded = load_engine(model, device="cpu")
    assert loaded.engine.name == "onnxruntime:CPUExecutionProvider"
    assert loaded.reason == "cpu was asked for"


def test_auto_says_why_it_took_the_cpu(model):
    if gpus().count:
        pytest.skip("this machine has a GPU")
    loaded = load_engine(model, device="auto")
    assert loaded.engine.name == "onnxruntime:CPUExecutionProvider"
    assert loaded.reason == f"auto: {gpus().reason}"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7"])
def test_a_gpu_that_is_not_there_is_an_error_and_never_the_cpu(model, device):
    if gpus().count > 7:
        pytest.skip("this machine has more than seven GPUs")
    if gpus().count and device != "cuda:7":
        pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceError, match=f"No device '{device}': .* Use --device cpu"):
        load_engine(model, device=device)


@pytest.mark.parametrize("device", ["gpu", "CPU", "cuda:", "cuda:-1", "", "cpu:0"])
def test_a_device_that_is_no_word_is_a_usage_error(model, device):
    with pytest.raises(UsageError, match="Use auto, cpu, cuda or cuda:N"):
        load_engine(model, device=device)


def test_the_cuda_provider_is_never_replaced_by_the_cpus(model, cuda):
    if gpus().count:
        pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceError, match=r"^ONNX Runtime cannot use its CUDA provider on cuda:0: .*--device cpu\.$"):
        OnnxRuntimeCudaEngine(model, cuda)


@pytest.mark.parametrize(("threads", "cpus"), [(1, 1), (1, 64), (3, 64)])
def test_a_session_starts_the_threads_it_was_given_and_says_nothing_of_affinity(model, threads, cpus):
    command = [sys.executable, "-c", COUNT_THREADS, model, str(threads), str(cpus)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{threads - 1}\n", "")


def test_a_batch_that_the_runtime_refuses_is_an_infer_error_and_the_engine_goes_on(model, pixels):
    engine = OnnxRuntimeEngine(model)
    with pytest.raises(InferError, match="failed on a batch of 10") as caught:
        engine.infer(pixels[:, :4])
    assert (caught.value.kind, caught.value.retryable) == ("runtime_error", False)
    assert engine.infer(pixels)["embedding"].shape == (10, 3)


def test_a_model_that_merges_its_batch_is_an_infer_error(tmp_path, pixels):
    def merge(proto: onnx.ModelProto) -> None:
        graph = proto.graph
        graph.node[-1].output[0] = "each"
        graph.node.append(helper.make_node("ReduceMean", ["each", "first"], ["embedding"], keepdims=1))
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "first"))

    engine = OnnxRuntimeEngine(changed(mean_colour_model(tmp_path / "m.onnx", SIZE), merge))
    with pytest.raises(InferError, match="has 1 rows for a batch of 4") as caught:
        engine.infer(pixels[:4])
    assert caught.value.kind == "wrong_rows"


def fix_batch(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4


def take_floats(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT


def rename_input(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "x"


def resize_input(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 9


def second_input(proto: onnx.ModelProto) -> None:
    proto.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [1]))


def no_metadata(proto: onnx.ModelProto) -> None:
    del proto.metadata_props[:]


def bad_metadata(proto: onnx.ModelProto) -> None:
    helper.set_model_props(proto, {METADATA_KEY: "{"})


def other_version(proto: onnx.ModelProto) -> None:
    helper.set_model_props(proto, {METADATA_KEY: '{"spec_version": 99}'})


def incomplete_metadata(proto: onnx.ModelProto) -> None:
    helper.set_model_props(proto, {METADATA_KEY: '{"spec_version": 1, "name": "x"}'})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (fix_batch, "the batch is fixed at 4"),
        (take_floats, r"promises images: uint8 \[n, 8, 8, 3\]"),
        (rename_input, "takes .*'x'.*promises images"),
        (resize_input, "9, 8, 3.*promises images"),
        (second_input, "takes .*more.*promises images"),
        (no_metadata, "has no vdali metadata.*images.*uint8.*vdali export"),
        (bad_metadata, "metadata of .* is not readable"),
        (other_version, "spec version 99; this vdali reads version 1"),
        (incomplete_metadata, "metadata of .* is incomplete"),
    ],
)
def test_a_file_that_does_not_keep_the_contract_is_refused_with_the_reason(model, change, says):
    with pytest.raises(ModelError, match=says):
        OnnxRuntimeEngine(changed(model, change))


def test_a_file_without_the_outputs_of_its_task_is_refused(model):
    with pytest.raises(ModelError, match=r"lacks the outputs \['top_labels', 'top_scores'\] of task classify"):
        OnnxRuntimeEngine(with_spec(model, task=Task.CLASSIFY))


@pytest.mark.parametrize("content", [b"", b"weights\n", None])
def test_a_file_that_is_no_onnx_file_is_refused(model, content):
    model.write_bytes(model.read_bytes()[:200] if content is None else content)
    with pytest.raises(ModelError, match="cannot load"):
        OnnxRuntimeEngine(model)


def test_a_precision_that_no_cpu_has_kernels_for_is_told_as_the_machine_s_lack(model):
    def in_bf16(proto):
        proto.graph.node.append(helper.make_node("Cast", ["embedding"], ["half"], to=TensorProto.BFLOAT16))
        proto.graph.node.append(helper.make_node("Tanh", ["half"], ["bent"]))
        proto.graph.output.append(helper.make_tensor_value_info("bent", TensorProto.BFLOAT16, ["n", 3]))

    with pytest.raises(DeviceError, match=r"no kernel for .*Tanh.* bf16"):
        OnnxRuntimeEngine(changed(model, in_bf16))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "none.onnx", tmp_path):
        with pytest.raises(ModelError, match="No model file at"):
            load_engine(path)


def test_missing_external_weights_are_refused(tmp_path):
    path = tiny_classifier(tmp_path / "m.onnx")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=1000)
    assert OnnxRuntimeEngine(path).content
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelError, match=r"w\.bin"):
        OnnxRuntimeEngine(path)
