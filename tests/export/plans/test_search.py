"""The plan of the cache that an ONNX file runs as: its own, proven, fitting, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fake_plans import GPU, SIZE, sidecar_of
from fake_tensorrt import FakeTensorRT, plan_bytes
from models import mean_colour_model
from vdali.engine.backends.content import model_content
from vdali.engine.backends.load import PlanSearch
from vdali.engine.errors import DeviceError
from vdali.engine.plans.sidecar import PROVEN, REFUSED, sidecar_path
from vdali.export.plans import search as plan_search
from vdali.export.plans.search import find_plan


class Plans:
    """A folder of plans for one model."""

    def __init__(self, folder: Path, trt: FakeTensorRT) -> None:
        self.folder, self.trt = folder, trt
        self.model = mean_colour_model(folder / "m.onnx", SIZE)
        self.content = model_content(self.model)

    def add(self, name: str, *, state: str = f"{PROVEN}: cosine 1", built_at: str = "2026-01-01", **changes) -> Path:
        path = self.folder / name
        path.write_bytes(plan_bytes(size=SIZE))
        sidecar = sidecar_of(self.trt, path.read_bytes(), **{"model_content": self.content, **changes})
        sidecar_path(path).write_text(dataclasses.replace(sidecar, state=state, built_at=built_at).dumps())
        return path

    def search(self) -> PlanSearch:
        return find_plan(self.model, GPU, folder=self.folder)


@pytest.fixture
def plans(tmp_path, monkeypatch) -> Plans:
    from fake_cuda import FakeCudaRuntime

    trt = FakeTensorRT(FakeCudaRuntime())
    monkeypatch.setattr(plan_search, "load_flavour", lambda name: trt.flavour)
    return Plans(tmp_path, trt)


def test_the_newest_plan_of_the_model_that_fits_is_taken(plans):
    plans.add("old.plan", built_at="2026-01-01")
    newest = plans.add("new.plan", built_at="2026-03-01")
    plans.add("older.plan", built_at="2025-01-01")
    plans.add("other.plan", built_at="2026-04-01", model_content="of another model")
    assert plans.search() == PlanSearch(newest, "plan new.plan, proven: cosine 1")


def test_without_a_plan_the_command_that_builds_one_is_named(plans):
    (plans.folder / "half.plan").write_bytes(b"no sidecar")
    found = plans.search()
    assert found.plan is None
    assert found.why == "the plan cache has none for m.onnx: `vdali engines make` builds and proves them"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"state": "built, not run"}, "x.plan: built, not run; `vdali engines make` proves plans"),
        ({"state": f"{REFUSED}: worst picture 3"}, "x.plan: refused: worst picture 3"),
        ({"version_compatible": True}, "x.plan: it runs code out of the file"),
        ({"gpu": "NVIDIA L4"}, "x.plan: it was built for NVIDIA L4 (sm89), here is NVIDIA Played (sm89)"),
        ({"flavour_version": "11.3.0.1"}, "x.plan: it was built by TensorRT 11.3.0.1, here is TensorRT 11.4.0.106"),
    ],
)
def test_a_plan_that_is_not_taken_is_named_with_the_reason(plans, made, why):
    plans.add("x.plan", **made)
    found = plans.search()
    assert found.plan is None
    assert found.why.startswith(why)


def test_a_tensorrt_that_is_missing_is_the_reason(plans, monkeypatch):
    def missing(name: str):
        raise DeviceError("TensorRT is not installed")

    monkeypatch.setattr(plan_search, "load_flavour", missing)
    plans.add("x.plan")
    assert plans.search() == PlanSearch(None, "x.plan: TensorRT is not installed")
