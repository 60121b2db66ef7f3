"""Plans proven: run where they were built for, and held against the fp32 file on real pictures.

A plan that was built and never compared is no engine yet; its sidecar says which of the two it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from ..engine.backends.interface import Engine
from ..engine.errors import AgreementError, ModelError, UsageError
from ..engine.gpu_probe import Gpu, probe_gpu
from ..engine.plans.check import check_fit
from ..engine.plans.files import write_atomically
from ..engine.plans.flavour import Flavour
from ..engine.plans.options import BatchProfile
from ..engine.plans.sidecar import PROVEN, REFUSED, sidecar_path
from ..engine.spec import Precision
from .agreement import Limits
from .calibration import CalibrationSet, Input, calibration_set
from .kept import spec_of
from .plans.cache import CachedPlan
from .session import read_model
from .store import resolve_model
from .validate import Candidate, validate


@dataclass(frozen=True, slots=True)
class Prover:
    """A GPU that plans can be run on, and how one is loaded there."""

    gpu: Gpu
    load: Callable[[Path], Engine]

    def proven(
        self, plan: CachedPlan, flavour: Flavour, reference: Path, pictures: Callable[[], CalibrationSet]
    ) -> CachedPlan:
        """``plan`` as it is where it is proven already or is for other GPUs, else run and compared.

        Raises what ``prove_plan`` and ``load`` raise.
        """
        if is_proven(plan) or not self._fits(plan, flavour):
            return plan
        with closing(self.load(plan.path)) as engine:
            return prove_plan(plan, engine, reference, pictures())

    def _fits(self, plan: CachedPlan, flavour: Flavour) -> bool:
        try:
            check_fit(plan.sidecar.key, flavour, self.gpu)
        except ModelError:
            return False
        return True


def prover_here() -> Prover | None:
    """The first GPU of this machine; None without one."""
    from ..engine.backends.load import load_plan

    gpus = probe_gpu()
    return Prover(gpus.gpus[0], load_plan) if gpus.count else None


def prove_here(
    plan: CachedPlan,
    flavour: Flavour,
    reference: str,
    images: Input | Sequence[Input] | None,
    report: Callable[[str], None],
    prover: Prover | None = None,
) -> CachedPlan:
    """``plan``, proven where this machine has a GPU that it is for; ``reference`` is an fp32 file or a known name.

    Raises UsageError when the reference is of another precision, and what ``Prover.proven`` raises.
    """
    prover = prover or prover_here()
    if prover is None:
        return plan
    fp32 = resolve_model(reference, precision=Precision.FP32, report=report)
    spec = spec_of(read_model(fp32, weights=False), file=str(fp32))
    if spec.precision is not Precision.FP32:
        raise UsageError(
            f"{fp32} is {spec.precision}, so the plan {plan.path} is built and not proven. Name the fp32 file that it "
            "was made from: --reference FILE.onnx."
        )
    return prover.proven(plan, flavour, fp32, lambda: calibration_set(images, spec))


def prove_plan(
    plan: CachedPlan, engine: Engine, reference: Path, pictures: CalibrationSet, *, limits: Limits | None = None
) -> CachedPlan:
    """``plan`` with what the comparison found in its sidecar's state, on disk too.

    ``engine`` is the plan, loaded; ``reference`` the fp32 file. Batches are 1, 2, 3 and the largest of the plan's
    profile. Raises AgreementError that names the worst picture when the plan is refused, and ModelError when it does
    not run at all; the sidecar then says ``refused``, and why.
    """
    key = plan.sidecar.key
    judged = f"{engine.name} on {key.bound_to}"
    candidate = Candidate(plan.path.name, plan.sidecar.spec.precision, engine.infer, judged)
    try:
        agreement = validate(
            reference, candidate, pictures, limits, largest_batch=BatchProfile.parse(key.batch).largest
        )
    except AgreementError as error:
        _with_state(plan, f"{REFUSED}: {error}")
        raise
    return _with_state(plan, f"{PROVEN}: {agreement}, on {agreement.pictures} pictures")


def is_proven(plan: CachedPlan) -> bool:
    return plan.sidecar.state.startswith(PROVEN)


def _with_state(plan: CachedPlan, state: str) -> CachedPlan:
    sidecar = replace(plan.sidecar, state=state)
    write_atomically(sidecar_path(plan.path), sidecar.dumps().encode())
    return replace(plan, sidecar=sidecar)
