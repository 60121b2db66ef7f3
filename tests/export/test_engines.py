"""`make engines` on small models: what is built, cached, refused, and how a plan is proven where it can be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from int8_models import convolutional
from models import mean_colour_model, tiny_classifier
from numpy.typing import NDArray
from onnx import numpy_helper
from pictures import write_numbered
from vdali.engine.backends.interface import Engine
from vdali.engine.backends.onnxruntime import OnnxRuntimeEngine
from vdali.engine.errors import AgreementError, DeviceError, UsageError
from vdali.engine.gpu_probe import Gpu
from vdali.engine.plans.flavour import Flavour, load_flavour
from vdali.engine.plans.options import PlanOptions
from vdali.engine.plans.sidecar import read_sidecar
from vdali.engine.spec import Precision
from vdali.export.calibration import calibration_set
from vdali.export.engines import EngineMaker, EngineRow
from vdali.export.kept import spec_of
from vdali.export.plans.cache import PlanCache
from vdali.export.precision import export_precision
from vdali.export.proof import Prover, is_proven, prove_here, prove_plan
from vdali.export.session import read_model


class StandInForPlan(OnnxRuntimeEngine):
    """In place of a plan on a GPU, which this machine cannot run: the ONNX file on the CPU. Remembers its batches."""

    def __init__(self, model: Path) -> None:
        super().__init__(model)
        self.batches: list[int] = []

    def infer(self, pixels: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
        self.batches.append(len(pixels))
        return super().infer(pixels)


ALL = (Precision.FP32, Precision.FP16, Precision.INT8)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures") / "in"
    write_numbered(folder, 16)
    return folder


@pytest.fixture(scope="module")
def rtx() -> Flavour:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: pip install 'vdali[rtx]'")
    return load_flavour("tensorrt_rtx")


ADA = Gpu("a GPU that is not there", 24 << 30, "8.9")


def maker(
    pictures: Path, flavour: Flavour | None = None, load: Callable[[Path], Engine] | None = None, gpu: Gpu = ADA
) -> EngineMaker:
    return EngineMaker(
        images=str(pictures),
        flavour=flavour,
        plan_options=PlanOptions(targets=("sm89",)),
        plans=PlanCache(),
        report=lambda line: None,
        prover=Prover(gpu, load) if load is not None else None,
    )


def test_each_precision_is_a_row_with_its_steps_and_the_second_time_all_are_cached(
    tmp_path: Path, pictures: Path, rtx: Flavour
) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(convolutional()[0], model)
    first = list(maker(pictures, rtx).rows([str(model)], ALL))
    assert [(row.precision, row.status, row.why) for row in first] == [(p, "built", "no plan yet") for p in ALL]
    for row in first:
        assert row.path is not None
        assert spec_of(read_model(row.path, weights=False), file="").precision is row.precision
        assert row.size_bytes == row.path.stat().st_size
        assert row.plan.startswith("tensorrt_rtx 1.")
        assert row.plan.endswith("for sm89: built, not run")
        assert row.plan_bytes > 1000
        assert {"convert", "gate", "plan"} <= row.steps_s.keys()
    assert ["export" in row.steps_s for row in first] == [True, False, False]
    again = list(maker(pictures, rtx).rows([str(model)], ALL))
    assert [(row.status, row.why) for row in again] == [("cached", "")] * 3
    assert [row.agreement for row in again] == [row.agreement for row in first]


def test_a_model_that_cannot_be_used_is_rows_and_the_next_one_is_built(tmp_path: Path, pictures: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"weights go here")
    good = mean_colour_model(tmp_path / "good.onnx")
    rows = list(maker(pictures).rows([str(broken), str(good)], ALL[:2]))
    assert [row.status for row in rows] == ["refused", "refused", "built", "built"]
    assert all("broken.onnx" in row.why for row in rows[:2])
    assert {row.plan for row in rows[2:]} == {"no TensorRT flavour here"}


def test_nan_weights_are_refused_at_every_precision(tmp_path: Path, pictures: Path, cache: Path) -> None:
    path = tiny_classifier(tmp_path / "model.onnx")
    model = onnx.load(path)
    weight = next(value for value in model.graph.initializer if value.name == "weight")
    weight.CopyFrom(numpy_helper.from_array(np.full_like(numpy_helper.to_array(weight), np.nan), "weight"))
    onnx.save(model, path)
    rows = list(maker(pictures).rows([str(path)], ALL[:2]))
    assert [row.status for row in rows] == ["refused"] * 2
    assert all("gives NaN or infinity for every picture" in row.why for row in rows)
    assert not list(cache.glob("models/*.onnx"))


def test_a_plan_is_proven_where_there_is_a_gpu_and_only_once(tmp_path: Path, pictures: Path, rtx: Flavour) -> None:
    model = tiny_classifier(tmp_path / "model.onnx")
    loaded: list[Path] = []

    def load(plan: Path) -> StandInForPlan:
        loaded.append(plan)
        return StandInForPlan(model)

    (row,) = maker(pictures, rtx, load).rows([str(model)], ALL[:1])
    assert ": proven: cosine 1.00000..1.00000, top-1 1.000, on 16 pictures" in row.plan
    assert read_sidecar(loaded[0]).state.startswith("proven: ")
    (again,) = maker(pictures, rtx, load).rows([str(model)], ALL[:1])
    assert (again.status, again.plan) == ("cached", row.plan)
    assert len(loaded) == 1


def test_a_plan_that_gives_something_else_is_refused_and_says_so_for_good(
    tmp_path: Path, pictures: Path, rtx: Flavour
) -> None:
    model, other = tiny_classifier(tmp_path / "model.onnx"), tiny_classifier(tmp_path / "other.onnx", seed=1)
    (row,) = maker(pictures, rtx, lambda _: StandInForPlan(other)).rows([str(model)], ALL[:1])
    assert (row.plan, row.status) == ("refused", "built")
    assert "differs too much from its fp32 reference on 16 pictures" in row.why
    assert ".jpg" in row.why
    (plan,) = PlanCache().ls()
    assert plan.sidecar is not None
    assert plan.sidecar.state.startswith("refused: ")


def test_a_plan_for_other_gpus_is_not_run(tmp_path: Path, pictures: Path, rtx: Flavour) -> None:
    def load(plan: Path) -> StandInForPlan:
        raise AssertionError(f"{plan} must not be loaded")

    model = tiny_classifier(tmp_path / "model.onnx")
    hopper = Gpu("another GPU that is not there", 80 << 30, "9.0")
    (row,) = maker(pictures, rtx, load, hopper).rows([str(model)], ALL[:1])
    assert row.plan.endswith("for sm89: built, not run")


def test_a_plan_that_does_not_load_is_refused(tmp_path: Path, pictures: Path, rtx: Flavour) -> None:
    def load(plan: Path) -> StandInForPlan:
        raise DeviceError(f"{plan.name} is for another GPU.")

    (row,) = maker(pictures, rtx, load).rows([str(tiny_classifier(tmp_path / "model.onnx"))], ALL[:1])
    assert (row.plan, row.why.endswith("is for another GPU.")) == ("refused", True)


def test_proof_runs_the_largest_batch_of_the_profile(tmp_path: Path, pictures: Path, rtx: Flavour) -> None:
    model = tiny_classifier(tmp_path / "model.onnx")
    plan = PlanCache().get_or_build(model, PlanOptions(targets=("sm89",)), flavour=rtx)
    spec = spec_of(read_model(model, weights=False), file="")
    images = calibration_set(str(pictures), spec)
    engine = StandInForPlan(model)
    assert is_proven(prove_plan(plan, engine, model, images))
    assert engine.batches[:4] == [64, 1, 2, 3]
    with pytest.raises(AgreementError, match="worst"):
        prove_plan(plan, StandInForPlan(tiny_classifier(tmp_path / "other.onnx", seed=1)), model, images)


def test_rows_become_json_with_seconds_in_their_names(tmp_path: Path, pictures: Path) -> None:
    (row,) = maker(pictures).rows([str(mean_colour_model(tmp_path / "model.onnx"))], ALL[:1])
    values = row.to_json()
    assert {"model", "precision", "status", "size_bytes", "total_s", "export_s", "convert_s", "gate_s"} <= values.keys()
    assert "plan_s" not in values
    assert EngineRow("m", "w", Precision.FP32, "refused").to_json()["path"] is None


def test_a_plan_built_on_its_own_is_proven_against_the_fp32_file_it_came_from(
    tmp_path: Path, pictures: Path, rtx: Flavour
) -> None:
    model = tiny_classifier(tmp_path / "model.onnx")
    half = tmp_path / "half.onnx"
    spec = spec_of(read_model(model, weights=False), file=str(model))
    export_precision(model, half, Precision.FP16, pictures=calibration_set(str(pictures), spec))
    plan = PlanCache().get_or_build(half, PlanOptions(targets=("sm89",)), flavour=rtx)
    prover = Prover(ADA, lambda _: StandInForPlan(half))
    with pytest.raises(UsageError, match="--reference"):
        prove_here(plan, rtx, str(half), str(pictures), lambda line: None, prover)
    assert is_proven(prove_here(plan, rtx, str(model), str(pictures), lambda line: None, prover))
