"""Plans that are not loaded: foreign, untrusted, damaged, or not what their sidecar promises."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorrt_rtx as real
from conftest import gpus
from fake_plans import GPU, opened, pictures
from fake_tensorrt import FakeTensorRT, counted
from models import mean_colour_model, red_segmenter, tiny_classifier
from vdali.engine.backends.content import model_spec
from vdali.engine.backends.tensorrt import TensorRTEngine, TensorRTOptions
from vdali.engine.backends.tensorrt_plan import OUTPUT_DTYPES
from vdali.engine.cuda.device import CudaDevice
from vdali.engine.errors import DeviceError, ModelError
from vdali.engine.plans.flavour import load_flavour
from vdali.engine.plans.options import PlanOptions
from vdali.engine.spec import OUTPUT_NAMES, Task
from vdali.export.plans.cache import PlanCache

COMPATIBLE = {"version_compatible": True}


def test_a_plan_that_runs_code_is_loaded_only_for_those_who_trust_it(trt, runtime, tmp_path):
    with pytest.raises(ModelError, match=r"runs code out of the file\. Allow that only for .* --trust-plan") as caught:
        opened(trt, runtime, tmp_path, changes=COMPATIBLE)
    assert caught.value.exit_status == 5
    assert trt.calls == []
    assert not trt.host_code_allowed
    opened(trt, runtime, tmp_path, changes=COMPATIBLE, options=TensorRTOptions(trust_host_code=True)).close()
    assert trt.host_code_allowed


def test_trust_is_not_given_to_a_plan_that_needs_none(trt, runtime, tmp_path):
    opened(trt, runtime, tmp_path, options=TensorRTOptions(trust_host_code=True)).close()
    assert not trt.host_code_allowed


@pytest.mark.parametrize(
    ("changes", "gpu", "words"),
    [
        ({"flavour_version": "1.0.0.1"}, GPU, r"it was built by TensorRT.* 1\.0\.0\.1, here is TensorRT"),
        (
            {"gpu": "NVIDIA L4", "compute_capability": "8.9"},
            GPU,
            r"it was built for NVIDIA L4 \(sm89\), here is NVIDIA Played \(sm89\)",
        ),
        ({}, dataclasses.replace(GPU, compute_capability="7.5"), r"here is NVIDIA Played \(sm75\)"),
    ],
)
def test_a_plan_for_another_machine_does_not_reach_tensorrt(trt, runtime, tmp_path, changes, gpu, words):
    with pytest.raises(ModelError, match=rf"Cannot use the plan .*{words}.*Build it again"):
        opened(trt, runtime, tmp_path, changes=changes, gpu=gpu)
    assert (trt.trace, trt.calls) == ([], [])


def test_a_plan_that_tensorrt_refuses_is_told_in_its_words_and_leaves_nothing_behind(trt, runtime, tmp_path):
    trt.refuses["deserialize_cuda_engine"] = "magic tag does not match"
    with pytest.raises(ModelError, match=r"cannot load the plan .*: magic tag does not match\. Build it again"):
        opened(trt, runtime, tmp_path)
    assert not any(counted(trt.trace).values())
    assert runtime.memory == {}


def test_a_plan_that_goes_away_while_it_is_loaded_is_a_model_error(trt, runtime, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeTensorRT, "Runtime", lambda self, logger: (tmp_path / "model.plan").unlink())
    with pytest.raises(ModelError, match=r"Cannot read the plan .*: No such file or directory"):
        opened(trt, runtime, tmp_path)


def test_a_runtime_that_cannot_be_had_is_a_device_error(trt, runtime, tmp_path):
    trt.refuses["Runtime"] = ""
    with pytest.raises(DeviceError, match="gives no runtime: factory function returned nullptr"):
        opened(trt, runtime, tmp_path)


@pytest.mark.parametrize("trt", [True], indirect=True, ids=["tensorrt_rtx"])
@pytest.mark.parametrize(
    ("flags", "error", "words"),
    [
        (
            ("UNSUPPORTED_CC", "VERSION_MISMATCH"),
            ModelError,
            r"version mismatch, unsupported cc\. Build it",
        ),
        (("UNSUPPORTED_CC", "OLD_CUDA_DRIVER"), DeviceError, "on this machine: unsupported cc, old cuda driver"),
        ((), ModelError, "it is invalid on this GPU"),
    ],
)
def test_tensorrt_rtx_says_why_a_plan_is_invalid_on_this_gpu(trt, runtime, tmp_path, flags, error, words):
    reasons = real.EngineInvalidityDiagnostics.__members__
    trt.validity = (real.EngineValidity.INVALID, sum(reasons[flag].value for flag in flags))
    with pytest.raises(error, match=words):
        opened(trt, runtime, tmp_path)
    assert "deserialize_cuda_engine" not in trt.calls


def test_the_real_tensorrt_rtx_refuses_a_real_plan_without_a_driver_in_its_own_words(runtime, tmp_path):
    if gpus().count:
        pytest.skip("this machine has a GPU")
    rtx = load_flavour("tensorrt_rtx")
    model = mean_colour_model(tmp_path / "m.onnx")
    plan = PlanCache(tmp_path / "plans").get_or_build(model, PlanOptions(targets=("sm89",)), flavour=rtx)
    device = CudaDevice(0, runtime=runtime)
    with pytest.raises(ModelError, match=r"cannot load the plan .*\.plan: Error reading CUDA GPU properties"):
        TensorRTEngine(plan.path, device, sidecar=plan.sidecar, flavour=rtx, gpu=GPU)
    device.close()


@pytest.mark.parametrize("trt", [True], indirect=True, ids=["tensorrt_rtx"])
def test_tensorrt_rtx_compiles_ahead_of_the_first_batch(trt, runtime, tmp_path):
    opened(trt, runtime, tmp_path).close()
    assert real.DynamicShapesKernelSpecializationStrategy.EAGER in trt.strategies
    assert "set_runtime_cache" in trt.calls


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"outputs": {"vector": ("float32", [3])}}, r"takes \['images'\] and gives \['vector'\]"),
        ({"pixels": "float32"}, r"takes FLOAT \[8, 8, 8, 3\]"),
        ({"outputs": {"embedding": ("float16", [3])}}, r"gives 'embedding' as HALF \[8, 3\]"),
        ({"outputs": {"embedding": ("float32", [-1])}}, r"gives 'embedding' as FLOAT \[8, -1\]"),
        ({"outputs": {"embedding": ("float32", [3]), "more": ("float32", [3])}}, "and gives"),
    ],
)
def test_a_plan_with_other_tensors_than_its_sidecar_promises_is_refused(trt, runtime, tmp_path, plan, words):
    with pytest.raises(ModelError, match=rf"The plan .*{words}.*its sidecar promises images: uint8 \[n, 8, 8, 3\]"):
        opened(trt, runtime, tmp_path, **plan)
    assert not any(counted(trt.trace).values())


@pytest.mark.parametrize(
    ("task", "outputs"),
    [
        (Task.CLASSIFY, {"top_labels": ("int64", [2]), "top_scores": ("float32", [2])}),
        (Task.SEGMENT, {"mask": ("uint8", [8, 3])}),
        (Task.EMBED, {"embedding": ("float32", [3])}),
    ],
)
def test_each_task_has_its_outputs_with_their_types(trt, runtime, tmp_path, task, outputs):
    engine = opened(trt, runtime, tmp_path, task=task, outputs=outputs)
    found = engine.infer(pictures(5))
    assert {name: (value.dtype.name, value.shape) for name, value in found.items()} == {
        name: (dtype, (5, *shape)) for name, (dtype, shape) in outputs.items()
    }
    levels = pictures(5).reshape(5, -1, 3).mean(axis=1)
    for value in found.values():
        assert np.allclose(value.reshape(5, -1)[:, :2], levels[:, :2], atol=1)
    engine.close()


@pytest.mark.parametrize("make", [mean_colour_model, tiny_classifier, red_segmenter])
def test_the_real_parser_gives_the_types_that_loading_a_plan_demands(tmp_path, make):
    rtx = load_flavour("tensorrt_rtx")
    network = rtx.trt.Builder(rtx.log.logger).create_network(0)
    parser = rtx.trt.OnnxParser(network, rtx.log.logger)
    model = make(tmp_path / "m.onnx")
    assert parser.parse_from_file(str(model))
    tensors = [network.get_input(0), *(network.get_output(index) for index in range(network.num_outputs))]
    names = {np.float32: "FLOAT", np.int64: "INT64", np.uint8: "UINT8"}
    expected = {name: names[OUTPUT_DTYPES[name]] for name in OUTPUT_NAMES[model_spec(model).task]}
    assert {tensor.name: tensor.dtype.name for tensor in tensors} == {"images": "UINT8"} | expected
    assert all(
        [size == -1 for size in tensor.shape] == [True, *[False] * (len(tensor.shape) - 1)] for tensor in tensors
    )
