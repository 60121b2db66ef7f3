"""Every model at every precision: ONNX file, gate, plan. What `make engines` runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..engine.errors import ModelError, VdaliError
from ..engine.plans.flavour import Flavour
from ..engine.plans.options import PlanOptions
from ..engine.spec import Precision, Task
from .calibration import CalibrationSet, Input, calibration_set
from .kept import spec_of
from .options import RANDOM
from .plans.cache import CachedPlan, PlanCache
from .precision_store import PrecisionFile, precision_file
from .proof import Prover
from .session import read_model
from .sources import DEMO_MODEL
from .store import resolve_model

MODELS = (
    "efficientnet_lite0",
    "timm/mobilenetv3_small_100",
    "timm/resnet50",
    "timm/vit_small_patch16_224",
)
PRECISIONS = (Precision.FP32, Precision.FP16, Precision.INT8)

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One model at one precision. ``status`` is built, cached or refused; ``why`` the reason, empty where clear.

    ``seconds`` is what this call took. ``steps_s`` has ``export``, what this call took to have the fp32 file and the
    pictures (in the model's first row), and what ``convert``, ``gate`` and ``plan`` took when they were made.
    """

    model: str
    weights: str
    precision: Precision
    status: str
    why: str = ""
    size_bytes: int = 0
    agreement: str = ""
    kept: tuple[str, ...] = ()
    plan: str = ""
    plan_bytes: int = 0
    seconds: float = 0.0
    steps_s: Mapping[str, float] = field(default_factory=dict)
    path: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "weights": self.weights,
            "precision": self.precision.value,
            "status": self.status,
            "why": self.why,
            "size_bytes": self.size_bytes,
            "agreement": self.agreement,
            "kept": list(self.kept),
            "plan": self.plan,
            "plan_bytes": self.plan_bytes,
            "total_s": round(self.seconds, 2),
            **{f"{step}_s": round(seconds, 2) for step, seconds in self.steps_s.items()},
            "path": str(self.path) if self.path else None,
        }


@dataclass(frozen=True, slots=True)
class EngineMaker:
    """What is the same for all models: pictures, plan options, where there is a TensorRT flavour, and the caches.

    ``prover`` runs the plans that fit this machine's GPU; None where there is none.
    """

    images: Input | Sequence[Input] | None
    flavour: Flavour | None
    plan_options: PlanOptions
    plans: PlanCache
    report: Report
    prover: Prover | None = None

    def rows(self, models: Sequence[str], precisions: Sequence[Precision]) -> Iterator[EngineRow]:
        """One row for each model and precision, as each is done; an unusable model is rows too, not an end."""
        for model in models:
            started = time.perf_counter()
            try:
                fp32 = fp32_file(model, self.report)
                spec = spec_of(read_model(fp32, weights=False), file=str(fp32))
                pictures = calibration_set(self.images, spec)
            except ModelError as error:
                yield from (EngineRow(model, "", precision, "refused", str(error)) for precision in precisions)
                continue
            steps_s = {"export": time.perf_counter() - started}
            for precision in precisions:
                begun = EngineRow(spec.name, spec.weights, precision, "refused", steps_s=steps_s)
                row = self._row(fp32, begun, pictures)
                yield replace(row, seconds=time.perf_counter() - started)
                steps_s, started = {}, time.perf_counter()

    def _row(self, fp32: Path, row: EngineRow, pictures: CalibrationSet) -> EngineRow:
        try:
            file = precision_file(fp32, row.precision, pictures, report=self.report)
        except ModelError as error:
            return replace(row, why=str(error))
        if file.refusal:
            return replace(row, why=file.refusal)
        row = replace(
            row,
            status="cached" if file.hit else "built",
            size_bytes=file.found["size_bytes"],
            agreement=file.found["agreement_text"],
            kept=tuple(file.found["kept"]),
            path=file.path,
            steps_s={
                **row.steps_s,
                "convert": file.found["export_s"] - file.found["gate_s"],
                "gate": file.found["gate_s"],
            },
        )
        return self._with_plan(fp32, row, file, pictures)

    def _with_plan(self, fp32: Path, row: EngineRow, file: PrecisionFile, pictures: CalibrationSet) -> EngineRow:
        if self.flavour is None:
            return replace(row, plan="no TensorRT flavour here")
        try:
            plan = self.plans.get_or_build(file.path, self.plan_options, flavour=self.flavour)
            if self.prover is not None:
                plan = self.prover.proven(plan, self.flavour, fp32, lambda: pictures)
        except VdaliError as error:
            return replace(row, plan="refused", why=str(error))
        status = row.status if plan.hit else "built"
        return replace(
            row,
            status=status,
            plan=_plan_text(plan),
            plan_bytes=plan.sidecar.plan_bytes,
            steps_s={**row.steps_s, "plan": plan.sidecar.build_s},
            why="" if plan.hit else plan.reason,
        )


def fp32_file(model: str, report: Report) -> Path:
    """fp32 file of a known name (a bare one is timm's); random weights, named so, where others cannot be had.

    Random weights make an embedding model: the labels of an untrained classifier mean nothing, so no gate could
    judge them.
    """
    if "/" not in model and model != DEMO_MODEL and not model.endswith(".onnx"):
        model = f"timm/{model}"
    try:
        return resolve_model(model, precision=Precision.FP32, report=report)
    except ModelError as error:
        if not model.startswith(("timm/", "torchvision/")):
            raise
        report(f"{model}: {error}\n{model}: random weights are used instead.")
        return resolve_model(model, precision=Precision.FP32, task=Task.EMBED, weights=RANDOM, report=report)


def _plan_text(plan: CachedPlan) -> str:
    key = plan.sidecar.key
    return f"{key.flavour} {key.flavour_version} for {key.bound_to}: {plan.sidecar.state}"
