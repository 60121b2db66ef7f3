"""Every engine that runs on a real GPU: rows equal to the CPU's, overlapped batches equal to lone ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_lane import engine_lane
from models import mean_colour_model, plain_preprocess, tiny_classifier
from vdali.engine.backends.interface import DeviceEngine
from vdali.engine.backends.load import load_engine, load_plan
from vdali.engine.backends.onnxruntime_cuda import OnnxRuntimeCudaEngine
from vdali.engine.backends.tensorrt import TensorRTOptions
from vdali.engine.backends.torch import TorchEngine
from vdali.engine.cuda.device import CudaDevice
from vdali.engine.errors import DeviceError, MissingExtraError, ModelError
from vdali.engine.plans.options import BatchProfile, PlanOptions
from vdali.engine.scheduler import Scheduler
from vdali.engine.spec import ModelSpec, Task

pytestmark = pytest.mark.gpu

SIZE = (16, 16)
LARGEST = 16
KINDS = ("onnxruntime", "tensorrt", "tensorrt_rtx", "torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("engines")


def plan_of(model: Path, flavour: str, folder: Path) -> Path:
    """A plan for this GPU; the test is skipped where the flavour cannot build one."""
    from vdali.engine.plans.flavour import load_flavour
    from vdali.export.plans.cache import PlanCache

    try:
        loaded = load_flavour(flavour)
        targets = ("current",) if loaded.is_rtx else ()
        options = PlanOptions(batch=BatchProfile(1, 8, LARGEST), targets=targets)
        return PlanCache(folder / "plans").get_or_build(model, options, flavour=loaded).path
    except MissingExtraError as error:
        pytest.skip(str(error))
    except (DeviceError, ModelError) as error:
        if flavour == "tensorrt_rtx":
            pytest.skip(f"TensorRT-RTX does not know this GPU: {error}")
        raise


def opened(kind: str, model: Path, folder: Path, **options: Any) -> DeviceEngine:
    if kind == "onnxruntime":
        return OnnxRuntimeCudaEngine(model, CudaDevice(0))
    if kind == "torch":
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("PyTorch here was built without CUDA")
        spec = ModelSpec("mean_colour", Task.EMBED, plain_preprocess(SIZE))
        return TorchEngine(lambda pixels: (pixels.float().mean(dim=(1, 2)),), spec, CudaDevice(0))
    return load_plan(plan_of(model, kind, folder), options=TensorRTOptions(**options))


@cache
def pictures(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, *SIZE, 3), dtype=np.uint8)


def cosines(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(wanted, axis=1)
    return (got * wanted).sum(axis=1) / lengths


@pytest.mark.parametrize("kind", KINDS)
def test_rows_equal_those_of_the_cpu_at_every_batch_size(folder, kind):
    model = mean_colour_model(folder / "mean.onnx", SIZE)
    cpu = load_engine(model, device="cpu").engine
    engine = opened(kind, model, folder)
    for seed, rows in enumerate((1, 2, 3, LARGEST, 1, LARGEST)):
        pixels = pictures(rows, seed)
        got, wanted = engine.infer(pixels)["embedding"], cpu.infer(pixels)["embedding"]
        assert got.shape == wanted.shape
        assert cosines(got, wanted).min() >= 0.999
        np.testing.assert_allclose(got, wanted, rtol=1e-3)
    engine.close()


@pytest.mark.parametrize("kind", KINDS[:3])
def test_labels_and_scores_equal_those_of_the_cpu(folder, kind):
    model = tiny_classifier(folder / "classes.onnx", SIZE)
    wanted = load_engine(model, device="cpu").engine.infer(pictures(LARGEST, 0))
    engine = opened(kind, model, folder)
    got = engine.infer(pictures(LARGEST, 0))
    assert {name: value.dtype for name, value in got.items()} == {name: v.dtype for name, v in wanted.items()}
    np.testing.assert_array_equal(got["top_labels"][:, 0], wanted["top_labels"][:, 0])
    np.testing.assert_allclose(got["top_scores"], wanted["top_scores"], atol=1e-3)
    engine.close()


@pytest.mark.parametrize(
    ("kind", "options"), [(kind, {}) for kind in KINDS] + [(kind, {"cuda_graphs": True}) for kind in KINDS[1:3]]
)
def test_overlapped_batches_equal_lone_ones(folder, kind, options):
    """Three slots, batches of changing size, input buffers handed back as early as the runtime allows."""
    engine = opened(kind, mean_colour_model(folder / "mean.onnx", SIZE), folder, **options)
    batches = [pictures(1 + number % LARGEST, number % 40) for number in range(500)]
    expected: Callable[[int], np.ndarray] = cache(lambda number: engine.infer(batches[number])["embedding"])
    scheduler = Scheduler([engine_lane(engine, slots=3, rows=LARGEST)], depth=5)
    found = list(scheduler.run(batches))
    scheduler.close()
    for number, got in enumerate(found):
        np.testing.assert_allclose(got["embedding"], expected(number % 80), rtol=1e-5)
    engine.close()


@pytest.mark.parametrize("kind", KINDS[1:3])
def test_a_plan_of_another_gpu_or_a_damaged_one_is_refused(folder, kind, tmp_path):
    from vdali.engine.plans.check import copy_plan

    plan = tmp_path / "copy.plan"
    copy_plan(plan_of(mean_colour_model(folder / "mean.onnx", SIZE), kind, folder), plan)
    plan.write_bytes(plan.read_bytes()[:-100])
    with pytest.raises(ModelError, match="plan truncated"):
        load_plan(plan)
