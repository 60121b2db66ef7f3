"""Am I held back by the input or by the engine? Each stage alone, the whole, and a verdict with its numbers.

Knows how to ask; what a stage costs is measured in ``measure``, what follows from it is computed in ``model`` and
said in ``advice``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..backends.interface import Engine
from ..backends.load import FindPlan, load_engine
from ..backends.tensorrt import TensorRTOptions
from ..errors import UsageError
from ..lanes import LaneOptions, LanePlan, make_scheduler
from ..preprocess import Exif
from ..sources.interface import Source
from .advice import Advice, advise, engine_idle, verdict_of
from .alternatives import DecodersToTry, alternatives_of
from .arithmetic import decodes_on_gpu, is_cold, model_of, with_gpu_decode
from .measure import Picked, StagesAlone, pick_samples
from .model import (
    DECODE,
    DOWNLOAD,
    FORMAT_VERSION,
    INFER,
    LISTING,
    READ,
    ROWS,
    SINK,
    UPLOAD,
    PipelineModel,
    Resource,
    StageCost,
)
from .whole import Whole, measure_whole

_MUCH_ELSEWHERE = 0.25
_GPU_DECODE = (
    "decoding on the GPU cannot be measured alone: its rate is that of the whole run where no other stage explains it"
)


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage: what a sample costs there, and the rate (samples/s) if it were alone; ``absent`` says why not."""

    name: str
    cost: StageCost | None
    throughput: float | None
    cpu_share: float
    absent: str = ""

    def to_json(self) -> dict[str, Any]:
        if self.cost is None:
            return {"name": self.name, "absent": self.absent}
        return {
            "name": self.name,
            "wall_ms_per_sample": round(1e3 * self.cost.wall_s, 4),
            "cpu_ms_per_sample": round(1e3 * self.cost.cpu_s, 4),
            "cpu_share": round(self.cpu_share, 4),
            "throughput_alone_samples_per_s": round(self.throughput or 0.0, 2),
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found; rates are samples per second.

    ``throughput`` and ``cpu_s`` (CPU seconds of a sample) are what the whole run really did, ``modelled`` is the rate
    that the stages alone let expect. ``engine_idle`` and ``cpu_load`` (of the CPUs that this process may use) are
    shares of time, 0..1.
    """

    verdict: str
    resource: Resource
    stage: str
    throughput: float
    cpu_s: float
    modelled: float
    engine_idle: float
    cpu_load: float
    stages: Sequence[StageReport]
    advice: Sequence[Advice]
    notes: Sequence[str]
    settings: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """JSON form, units in the keys."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "diagnosis",
            "verdict": self.verdict,
            "resource": self.resource.value,
            "stage": self.stage,
            "throughput_samples_per_s": round(self.throughput, 2),
            "cpu_ms_per_sample": round(1e3 * self.cpu_s, 4),
            "modelled_throughput_samples_per_s": round(self.modelled, 2),
            "engine_idle_share": round(self.engine_idle, 4),
            "cpu_load_share": round(self.cpu_load, 4),
            "stages": [stage.to_json() for stage in self.stages],
            "advice": [advice.to_json() for advice in self.advice],
            "notes": list(self.notes),
            "settings": dict(self.settings),
        }


def diagnose(
    model: Path,
    source: Source,
    *,
    lanes: LaneOptions | None = None,
    device: str = "auto",
    exif: Exif | None = None,
    find_plan: FindPlan | None = None,
    tensorrt: TensorRTOptions | None = None,
    images: int = 256,
    seconds: float = 2.0,
    scratch: Path | None = None,
    report: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Measure each stage alone for ``seconds`` and the whole for twice that, on the first ``images`` of ``source``.

    ``scratch`` is a folder on the disk that OUT will be on (default: the system's temporary folder); what is written
    there is removed again. ``find_plan`` and ``tensorrt`` are those of ``load_engine``. ``report`` takes lines for
    people. Raises UsageError for numbers that make no sense, InputNotFoundError where no image is usable, and the
    errors of loading a model.
    """
    if images < 1 or not seconds > 0:
        raise UsageError(f"A diagnosis needs images >= 1 and seconds > 0, got {images} and {seconds}.")
    say = report or _silent
    options = lanes or LaneOptions()
    loaded = load_engine(model, device=device, threads=options.threads, find_plan=find_plan, tensorrt=tensorrt)
    with ExitStack() as stack:
        engine = stack.enter_context(closing(loaded.engine))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vdali-diagnosis-", dir=scratch)))
        preprocess = engine.spec.preprocess if exif is None else replace(engine.spec.preprocess, exif=exif)
        say(f"reading up to {images} images of {source.describe()}")
        picked = pick_samples(source, images=images, seconds=seconds)
        scheduler, plan = make_scheduler(engine, options, preprocess)
        stack.enter_context(closing(scheduler))
        decoders = DecodersToTry(options, preprocess, plan.micro_batch)
        stack.enter_context(closing(decoders))
        alone = StagesAlone(source, picked, engine, decoders.own, micro_batch=plan.micro_batch, scratch=folder)
        say(f"each stage alone, {seconds:g} s each")
        costs = alone.costs(seconds)
        gpu = loaded.ordinal
        copies = _copy_costs(gpu, alone, seconds) if gpu is not None else {}
        arithmetic = model_of(costs | copies, picked, plan)
        alternatives = alternatives_of(alone, arithmetic, decoders, options, plan, seconds)
        say(f"the whole, {2 * seconds:g} s")
        whole = measure_whole(
            source,
            scheduler,
            engine.spec,
            lanes=plan.lanes,
            micro_batch=plan.micro_batch,
            seconds=2 * seconds,
            scratch=folder,
            gpus=None if gpu is None else [gpu],
        )
        on_gpu = decodes_on_gpu(plan)
        if on_gpu:
            arithmetic = with_gpu_decode(arithmetic, whole.throughput)
        may_move = gpu is not None and not on_gpu
        advice = advise(arithmetic, whole.throughput, alternatives, micro_batch=plan.micro_batch, gpu_decode=may_move)
        load = min(1.0, whole.cpu_s / whole.elapsed_s / arithmetic.cpus)
        return Diagnosis(
            verdict=verdict_of(arithmetic, whole.throughput, advice),
            resource=arithmetic.limit.resource,
            stage=arithmetic.limit.stage,
            throughput=whole.throughput,
            cpu_s=whole.cpu_s / whole.samples,
            modelled=arithmetic.throughput,
            engine_idle=engine_idle(arithmetic, whole.throughput),
            cpu_load=load,
            stages=_stage_reports(arithmetic, on_gpu=on_gpu),
            advice=advice,
            notes=[*_notes(picked, costs[READ], whole, load), *([_GPU_DECODE] if on_gpu else [])],
            settings=_settings(engine, loaded.reason, options, plan, picked, whole),
        )


def _copy_costs(gpu: int, alone: StagesAlone, seconds: float) -> dict[str, StageCost]:
    from ..cuda.device import CudaDevice
    from .copies import copy_costs

    return copy_costs(CudaDevice(gpu), alone.pixels, alone.outputs, seconds)


def _stage_reports(model: PipelineModel, *, on_gpu: bool) -> list[StageReport]:
    """All stages in order; ``on_gpu``: the GPU decodes."""
    reports = []
    absent = (
        "the GPU decodes: only encoded bytes are copied" if on_gpu else "the engine runs on the CPU: nothing is copied"
    )
    for name in (LISTING, READ, DECODE, UPLOAD, INFER, DOWNLOAD, ROWS, SINK):
        if name in model.costs:
            reports.append(StageReport(name, model.costs[name], model.alone(name), model.cpu_share(name)))
        else:
            reports.append(StageReport(name, None, None, 0.0, absent))
    return reports


def _notes(picked: Picked, again: StageCost, whole: Whole, load: float) -> list[str]:
    notes = []
    first_ms, again_ms = 1e3 * picked.first_read.wall_s, 1e3 * again.wall_s
    where = "" if picked.disk_share is None else f", {100 * picked.disk_share:.0f} % of the bytes from a disk"
    notes.append(f"reading an image took {first_ms:.3g} ms the first time{where}, and {again_ms:.3g} ms again")
    if is_cold(picked, again):
        notes.append("the verdict is for files that are not in the page cache; a second run over them reads faster")
    if picked.failures:
        notes.append(f"{picked.failures} of the samples could not be read and are not part of the numbers")
    shares = [gpu.utilisation for sample in whole.telemetry for gpu in sample.gpus if gpu.utilisation is not None]
    if shares:
        notes.append(
            f"the GPU was busy {100 * sum(shares) / len(shares):.0f} % of the time ({100 * min(shares):.0f} to "
            f"{100 * max(shares):.0f} %) during the whole run"
        )
    busy = [sum(sample.host.cpu_busy) / len(sample.host.cpu_busy) for sample in whole.telemetry]
    if busy:
        mean = sum(busy) / len(busy)
        notes.append(
            f"all CPUs of the machine were busy {100 * mean:.0f} % of the time ({100 * min(busy):.0f} to "
            f"{100 * max(busy):.0f} %) during the whole run"
        )
        if mean - load > _MUCH_ELSEWHERE:
            notes.append(
                f"other processes used the CPUs: this one got {100 * load:.0f} % of them, so the whole run is slower "
                "than on an idle machine; the stages alone are counted in CPU time and hardly suffer from that"
            )
    return notes


def _settings(
    engine: Engine, reason: str, options: LaneOptions, plan: LanePlan, picked: Picked, whole: Whole
) -> dict[str, Any]:
    height, width = engine.spec.preprocess.size
    return {
        "model": engine.spec.name,
        "precision": engine.spec.precision.value,
        "resolution": f"{width}x{height}",
        "engine": engine.name,
        "reason": reason,
        "decoder": plan.decoder,
        "decode": options.decode.mode.value,
        "lanes": plan.lanes,
        "threads_per_lane": plan.threads,
        "micro_batch": plan.micro_batch,
        "images_alone": len(picked.encoded),
        "images_whole": whole.samples,
    }


def _silent(_: str) -> None: ...
