"""Which plan of the cache an ONNX file runs as on a GPU."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ...engine.backends.content import model_content
from ...engine.backends.load import PlanSearch
from ...engine.errors import DeviceError, ModelError
from ...engine.gpu_probe import Gpu
from ...engine.plans.check import check_fit
from ...engine.plans.flavour import load_flavour
from ...engine.plans.sidecar import PLAN_SUFFIX, PROVEN, PlanSidecar, read_sidecar
from .cache import default_directory


def find_plan(model: Path, gpu: Gpu, *, folder: Path | None = None) -> PlanSearch:
    """The newest plan that was built from this very file, was proven, and fits the GPU and the TensorRT here.

    Looks in the plan cache unless ``folder`` is given; builds nothing.
    """
    content = model_content(model)
    candidates = []
    for plan in (folder or default_directory()).glob(f"*{PLAN_SUFFIX}"):
        with suppress(ModelError):
            sidecar = read_sidecar(plan)
            if sidecar.key.model_content == content:
                candidates.append((sidecar.built_at, plan, sidecar))
    why = f"the plan cache has none for {model.name}: `vdali engines make` builds and proves them"
    for _, plan, sidecar in sorted(candidates, reverse=True, key=lambda found: found[0]):
        problem = _problem(sidecar, gpu)
        if not problem:
            return PlanSearch(plan, f"plan {plan.name}, {sidecar.state}")
        why = f"{plan.name}: {problem}"
    return PlanSearch(None, why)


def _problem(sidecar: PlanSidecar, gpu: Gpu) -> str:
    """Why a plan is not taken without being asked for; empty where it is."""
    if not sidecar.state.startswith(PROVEN):
        return f"{sidecar.state}; `vdali engines make` proves plans"
    if sidecar.holds_host_code:
        return "it runs code out of the file, so it is taken only when it is named, with --trust-plan"
    try:
        check_fit(sidecar.key, load_flavour(sidecar.key.flavour), gpu)
    except (ModelError, DeviceError) as error:
        return str(error)
    return ""
