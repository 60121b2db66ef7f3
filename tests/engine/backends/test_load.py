"""Which engine a model file gets, on machines with and without a GPU, and what is said of it."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import vdali
from commands import failed_ids_of, ids_of, vectors_of
from conftest import gpus
from fake_plans import GPU, SIZE, means, pictures, sidecar_of
from fake_tensorrt import FakeTensorRT, counted, plan_bytes
from models import mean_colour_model, tiny_classifier
from pictures import write_numbered
from vdali.engine import job
from vdali.engine.backends import load
from vdali.engine.backends.content import model_content
from vdali.engine.backends.load import PlanSearch, load_engine
from vdali.engine.backends.tensorrt import TensorRTOptions
from vdali.engine.cuda import device as cuda_device
from vdali.engine.errors import DeviceError, ModelError, UsageError
from vdali.engine.gpu_probe import GpuProbe
from vdali.engine.plans import flavour
from vdali.engine.plans.sidecar import REFUSED, sidecar_path


@pytest.fixture
def model(tmp_path) -> Path:
    return mean_colour_model(tmp_path / "m.onnx", SIZE)


@pytest.fixture
def played_gpu(runtime, monkeypatch) -> FakeTensorRT:
    """A machine with one GPU and TensorRT, both played; ONNX Runtime's CUDA provider is real and does not work."""
    if gpus().count:
        pytest.skip("this machine has a GPU, on which the CUDA provider works")
    trt = FakeTensorRT(runtime)
    for module in (load, job):
        monkeypatch.setattr(module, "probe_gpu", lambda: GpuProbe(gpus=(GPU,), driver="580.82"))
    monkeypatch.setattr(cuda_device, "_real_runtime", lambda ordinal: runtime)
    monkeypatch.setattr(flavour, "load_flavour", lambda name: trt.flavour)
    return trt


def write_plan(path: Path, trt: FakeTensorRT, *, state: str = "proven: cosine 1.0", **changes) -> Path:
    data = plan_bytes(size=SIZE)
    path.write_bytes(data)
    sidecar = sidecar_of(trt, data, **changes)
    sidecar_path(path).write_text(type(sidecar)(**{**fields_of(sidecar), "state": state}).dumps())
    return path


def fields_of(sidecar) -> dict[str, object]:
    return {name: getattr(sidecar, name) for name in sidecar.__slots__}


def test_a_plan_that_was_found_is_the_engine_of_its_model(tmp_path, model, played_gpu):
    plan = write_plan(tmp_path / "found.plan", played_gpu)
    asked = []

    def find_plan(path, gpu):
        asked.append((path, gpu))
        return PlanSearch(plan, "plan found.plan, proven")

    loaded = load_engine(model, device="cuda:0", find_plan=find_plan)
    assert asked == [(model, GPU)]
    assert loaded.engine.name == "tensorrt:11.4.0.106"
    assert loaded.reason == "cuda:0 was asked for; plan found.plan, proven"
    assert np.array_equal(loaded.engine.infer(pictures(3))["embedding"], means(pictures(3)))
    loaded.engine.close()


def test_a_plan_that_was_given_is_loaded_as_it_is(tmp_path, played_gpu):
    plan = write_plan(tmp_path / "given.plan", played_gpu, state="built, not run")
    loaded = load_engine(plan)
    assert loaded.reason == "auto: a GPU was found; the plan was given (built, not run)"
    loaded.engine.close()


def test_a_plan_that_a_comparison_has_refused_is_no_engine(tmp_path, played_gpu):
    plan = write_plan(tmp_path / "given.plan", played_gpu, state=f"{REFUSED}: worst picture 7.jpg, cosine 0.1")
    with pytest.raises(ModelError, match=r"was refused: worst picture 7\.jpg, cosine 0\.1\. Build it again"):
        load_engine(plan)


def test_options_reach_the_plan(tmp_path, played_gpu):
    plan = write_plan(tmp_path / "given.plan", played_gpu, version_compatible=True)
    with pytest.raises(ModelError, match="--trust-plan"):
        load_engine(plan)
    load_engine(plan, tensorrt=TensorRTOptions(trust_host_code=True)).engine.close()
    assert played_gpu.host_code_allowed


@pytest.mark.parametrize(
    ("search", "why"),
    [
        (lambda plan: PlanSearch(None, "there is none"), r"there is none"),
        (lambda plan: PlanSearch(plan, "found"), r"found\.plan.*its SHA-256 differs"),
    ],
)
def test_auto_on_a_gpu_that_cannot_be_used_takes_the_cpu_and_says_why(tmp_path, model, played_gpu, search, why):
    plan = write_plan(tmp_path / "found.plan", played_gpu)
    plan.write_bytes(plan.read_bytes()[:-1] + b" ")
    loaded = load_engine(model, find_plan=lambda path, gpu: search(plan))
    assert loaded.engine.name == "onnxruntime:CPUExecutionProvider"
    assert loaded.reason.startswith("auto: the CPU, since NVIDIA Played cannot be used. ONNX Runtime cannot use its C")
    assert loaded.fell_back
    with pytest.raises(DeviceError, match=r"ONNX Runtime cannot use its CUDA provider on cuda:0"):
        load_engine(model, device="cuda", find_plan=lambda path, gpu: search(plan))


def test_a_plan_without_a_gpu_is_a_device_error(tmp_path, runtime):
    if gpus().count:
        pytest.skip("this machine has a GPU")
    plan = write_plan(tmp_path / "given.plan", FakeTensorRT(runtime))
    with pytest.raises(DeviceError, match="is a TensorRT plan, which runs on a GPU only: no NVIDIA driver"):
        load_engine(plan)
    with pytest.raises(DeviceError, match="No device 'cuda:1'"):
        load_engine(plan, device="cuda:1")
    with pytest.raises(UsageError, match="runs on a GPU only"):
        load_engine(plan, device="cpu")


def test_external_weights_are_found_next_to_the_model_and_never_in_the_working_directory(tmp_path, monkeypatch):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    path = tiny_classifier(home / "m.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)
    expected = load_engine(path, device="cpu").engine.infer(pixels)["top_scores"]
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=1000)
    content = model_content(path)
    other = (home / "w.bin").read_bytes()
    (elsewhere / "w.bin").write_bytes(bytes(len(other)))  # weights of zero, if they were taken
    monkeypatch.chdir(elsewhere)
    for name in (path, os.path.relpath(path)):
        engine = load_engine(name, device="cpu").engine
        assert np.array_equal(engine.infer(pixels)["top_scores"], expected)
        assert engine.content == content
    (home / "w.bin").unlink()
    with pytest.raises(ModelError, match=r"w\.bin"):
        load_engine(path, device="cpu")


@pytest.mark.parametrize("options", [{}, {"cuda_graphs": True, "lanes": 2}])
def test_a_whole_run_on_a_plan_gives_the_rows_of_the_cpu(tmp_path, model, played_gpu, options):
    """Files to part files through the lanes of a GPU, with pictures that fail and a last batch that is not full."""
    write_numbered(tmp_path / "in", 61, bad=frozenset({7, 30}))
    plan = write_plan(tmp_path / "given.plan", played_gpu)
    common = {"decoder": "turbo", "batch_size": 2 if options else 8}
    on_cpu = vdali.run(tmp_path / "in", out=tmp_path / "cpu", model=model, device="cpu", **common)
    on_plan = vdali.run(tmp_path / "in", out=tmp_path / "plan", model=plan, **common, **options)
    assert on_plan.used.engine == "tensorrt:11.4.0.106"
    assert (on_plan.rows_total, on_plan.failures_total) == (on_cpu.rows_total, on_cpu.failures_total) == (59, 2)
    assert ids_of(tmp_path / "plan") == ids_of(tmp_path / "cpu")
    assert failed_ids_of(tmp_path / "plan") == failed_ids_of(tmp_path / "cpu")
    found, wanted = vectors_of(tmp_path / "plan"), vectors_of(tmp_path / "cpu")
    for name, vector in wanted.items():
        assert np.allclose(found[name], vector, atol=1e-3), name
    gc.collect()
    assert not any(counted(played_gpu.trace).values())
    assert played_gpu.cuda.memory == {}
    assert (played_gpu.cuda.launches > 0) == bool(options)
