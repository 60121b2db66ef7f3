"""Diagnoses of runs on a GPU: a played one, and the arithmetic of what a GPU shares."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import gpus
from fake_plans import GPU, SIZE, sidecar_of
from fake_tensorrt import FakeTensorRT, plan_bytes
from pictures import write_numbered
from vdali.engine.backends import load
from vdali.engine.cuda import device as cuda_device
from vdali.engine.decoders.make import DecoderName
from vdali.engine.diagnosis.advice import verdict_of
from vdali.engine.diagnosis.arithmetic import decodes_on_gpu, model_of, with_gpu_decode
from vdali.engine.diagnosis.diagnose import diagnose
from vdali.engine.diagnosis.measure import Picked
from vdali.engine.diagnosis.model import DECODE, DOWNLOAD, INFER, LISTING, READ, ROWS, SINK, UPLOAD, Resource, StageCost
from vdali.engine.diagnosis.prediction import predicted_throughput
from vdali.engine.gpu_probe import GpuProbe
from vdali.engine.lanes import LaneOptions, LanePlan
from vdali.engine.plans import flavour
from vdali.engine.plans.sidecar import sidecar_path
from vdali.engine.sources.open import open_source

PICKED = Picked([], 0, StageCost(1e-5, 1e-5), 1e-5, 0.0)
COSTS = {
    LISTING: StageCost(1e-6, 1e-6),
    READ: StageCost(1e-5, 1e-5),
    DECODE: StageCost(2e-3, 2e-3),
    UPLOAD: StageCost(1e-5, 0.0),
    INFER: StageCost(2.2e-4, 0.0),
    DOWNLOAD: StageCost(1e-5, 0.0),
    ROWS: StageCost(1e-6, 1e-6),
    SINK: StageCost(1e-6, 1e-6),
}


def plan(decoder: str) -> LanePlan:
    return LanePlan(decoder, lanes=1, threads=8, micro_batch=32, depth=5, slots=3, device="cuda:0")


@pytest.fixture
def plan_on_a_played_gpu(tmp_path, runtime, monkeypatch) -> Path:
    if gpus().count:
        pytest.skip("this machine has a GPU of its own")
    trt = FakeTensorRT(runtime)
    monkeypatch.setattr(load, "probe_gpu", lambda: GpuProbe(gpus=(GPU,), driver="580.82"))
    monkeypatch.setattr(cuda_device, "_real_runtime", lambda ordinal: runtime)
    monkeypatch.setattr(flavour, "load_flavour", lambda name: trt.flavour)
    data = plan_bytes(size=SIZE)
    path = tmp_path / "given.plan"
    path.write_bytes(data)
    sidecar_path(path).write_text(sidecar_of(trt, data).dumps())
    return path


def test_a_run_on_a_gpu_is_diagnosed_with_its_copies(tmp_path, plan_on_a_played_gpu):
    write_numbered(tmp_path / "in", 20, kinds=("JPEG",))
    options = LaneOptions(decoder=DecoderName.TURBO, batch_size=4)
    found = diagnose(plan_on_a_played_gpu, open_source([str(tmp_path / "in")]), lanes=options, seconds=0.2)
    costs = {stage.name: stage.cost for stage in found.stages}
    assert all(costs[name] is not None for name in (READ, DECODE, UPLOAD, INFER, DOWNLOAD, ROWS, SINK))
    assert found.settings["engine"].startswith("tensorrt:")
    assert found.throughput > 0


def test_the_threads_of_the_host_decode_side_by_side_for_one_gpu(monkeypatch):
    monkeypatch.setattr("vdali.engine.diagnosis.arithmetic._cpus", lambda: 8)
    model = model_of(COSTS, PICKED, plan("turbo"))
    assert (model.limit.resource, model.limit.stage) == (Resource.CPU, DECODE)
    assert model.throughput == pytest.approx(8 / 2.012e-3, rel=0.01)
    assert model.costs[INFER].wall_s == pytest.approx(2e-4)
    assert predicted_throughput(model, 32) == pytest.approx(model.throughput, rel=0.05)


def test_an_engine_whose_copies_took_longer_alone_than_with_it_has_a_rate_all_the_same():
    model = model_of({**COSTS, UPLOAD: StageCost(3e-4, 0.0)}, PICKED, plan("turbo"))
    assert model.costs[INFER].wall_s == pytest.approx(0.05 * 2.2e-4)
    assert model.alone(INFER) == pytest.approx(1 / 1.1e-5)


def test_decoding_on_the_gpu_is_what_nothing_else_explains():
    taken = plan("dali-gpu")
    assert decodes_on_gpu(taken)
    model = model_of(COSTS, PICKED, taken)
    assert model.throughput == pytest.approx(1 / 2e-4)
    slow = with_gpu_decode(model, 1000.0)
    assert (slow.limit.resource, slow.limit.stage) == (Resource.GPU, DECODE)
    assert verdict_of(slow, 1000.0, []).startswith(
        "input-bound: decode 1,000 images/s, engine 5,000; the engine idles 80 % of the time"
    )
    assert predicted_throughput(slow, 32) == pytest.approx(1000, rel=0.05)
    fast = with_gpu_decode(model, 4800.0)
    assert (fast.limit.resource, fast.limit.stage) == (Resource.GPU, INFER)
