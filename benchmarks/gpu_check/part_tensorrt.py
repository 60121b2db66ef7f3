"""TensorRT as an engine in the production lane: a plan is built here, then run with and without CUDA graphs."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ...engine.backends.load import load_plan
from ...engine.backends.tensorrt import TensorRTEngine, TensorRTOptions
from ...engine.plans.flavour import TENSORRT, load_flavour
from ...engine.plans.options import BatchProfile, PlanOptions
from ...export.plans.cache import CachedPlan, PlanCache
from .engine_checks import engine_checks
from .part_onnxruntime import cpu_rows, network_file
from .record import Check, Found

PROFILE = BatchProfile(1, 32, 64)
_GRAPH_CHECKS = slice(1, None)
"""Of an engine's checks, those that CUDA graphs could spoil."""


def build(flavour: str, targets: tuple[str, ...] = ()) -> CachedPlan:
    """A plan of the network for this GPU, in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="vdali-gpu-check-"))
    options = PlanOptions(batch=PROFILE, targets=targets)
    return PlanCache(folder).get_or_build(network_file(), options, flavour=load_flavour(flavour))


@functools.cache
def _plan() -> CachedPlan:
    return build(TENSORRT)


def checks() -> Sequence[Check]:
    def open_engine(*, cuda_graphs: bool) -> TensorRTEngine:
        return load_plan(_plan().path, options=TensorRTOptions(cuda_graphs=cuda_graphs))

    plain = engine_checks(functools.partial(open_engine, cuda_graphs=False), cpu_rows)
    graphs = engine_checks(functools.partial(open_engine, cuda_graphs=True), cpu_rows)
    return (
        Check("plan built", _build),
        *plain,
        *(Check(f"{check.name}, CUDA graphs", check.work) for check in graphs[_GRAPH_CHECKS]),
    )


def _build() -> Found:
    started = time.perf_counter()
    plan = _plan()
    seconds = time.perf_counter() - started
    numbers = {"build_s": seconds, "plan_bytes": float(plan.path.stat().st_size)}
    return Found(f"{plan.sidecar.key.flavour} {plan.sidecar.key.flavour_version}", numbers)
