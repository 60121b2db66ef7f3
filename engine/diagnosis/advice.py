"""What to change, with the rate that the model of the run predicts for it, and the verdict in one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .model import DECODE, DOWNLOAD, INFER, LISTING, READ, ROWS, SINK, UPLOAD, Limit, PipelineModel, Resource, StageCost
from .prediction import predicted_throughput

MOST_LANES = 32
MOST_CPUS = 128
WORTH_IT = 1.05
"""Smallest predicted gain that is advised."""

_BOUND = {
    LISTING: "input-bound",
    READ: "input-bound",
    DECODE: "input-bound",
    UPLOAD: "transfer-bound",
    INFER: "engine-bound",
    DOWNLOAD: "transfer-bound",
    ROWS: "output-bound",
    SINK: "output-bound",
}


@dataclass(frozen=True, slots=True)
class Advice:
    """A change and the rate (samples/s) that is predicted for it, ``gain`` times today's.

    ``options`` are what to give to a run, by the names of its options; empty where the change is to the machine, the
    files or the model.
    """

    change: str
    throughput: float
    gain: float
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "change": self.change,
            "options": dict(self.options),
            "predicted_throughput_samples_per_s": round(self.throughput, 2),
            "predicted_gain": round(self.gain, 3),
        }


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another setting of one stage whose cost was measured: what it is called, its options, the stage, its cost."""

    change: str
    options: Mapping[str, Any]
    stage: str
    cost: StageCost


def advise(
    model: PipelineModel,
    measured: float,
    alternatives: Sequence[Alternative],
    *,
    micro_batch: int,
    gpu_decode: bool = False,
) -> list[Advice]:
    """Changes worth it, options first, the greatest predicted gain first in each group.

    ``measured`` is today's rate (samples/s): predictions are that times the gain of the simulated machine.
    ``gpu_decode`` says that decoding could move to the GPU.
    """
    simulated = predicted_throughput(model, micro_batch)

    def advice(change: str, other: PipelineModel, options: Mapping[str, Any] | None = None) -> Advice:
        gain = predicted_throughput(other, micro_batch) / simulated
        return Advice(change, gain * measured, gain, options or {})

    tried = [advice(choice.change, _with(model, choice.stage, choice.cost), choice.options) for choice in alternatives]
    found = _best_of_each_option(tried)
    lanes = useful_lanes(model)
    if lanes > model.lanes:
        found.append(advice(f"--lanes {lanes}", replace(model, lanes=lanes), {"lanes": lanes}))
    if gpu_decode:
        found.append(advice("decoding on the GPU", _without(model, DECODE), {"decoder": "dali"}))
    found += [advice(change, other) for change, other in _other_means(model)]
    worth = [item for item in found if item.gain >= WORTH_IT]
    return sorted(worth, key=lambda item: (not item.options, -item.gain))


def _best_of_each_option(advice: Sequence[Advice]) -> list[Advice]:
    best: dict[tuple[str, ...], Advice] = {}
    for item in advice:
        key = tuple(item.options)
        if key not in best or item.gain > best[key].gain:
            best[key] = item
    return list(best.values())


def useful_lanes(model: PipelineModel) -> int:
    """Fewest lanes that come within 5 % of what more lanes can give, at most MOST_LANES."""
    most = replace(model, lanes=max(MOST_LANES, model.lanes)).throughput
    return next(
        lanes
        for lanes in range(1, max(MOST_LANES, model.lanes) + 1)
        if replace(model, lanes=lanes).throughput >= 0.95 * most
    )


def _other_means(model: PipelineModel) -> list[tuple[str, PipelineModel]]:
    """What no option changes: the machine, where files lie, the model."""
    limit = model.limit
    means: list[tuple[str, PipelineModel]] = []
    if limit.resource is Resource.CPU:
        more = more_cpus(model)
        others = replace(model, cpus=model.cpus + more, lanes=max(model.lanes, math.ceil(model.cpus) + more))
        means.append((f"{more} more CPUs", others))
    if limit.resource is Resource.DISK:
        read = model.costs[READ]
        means.append(
            ("bytes that are there at once (faster storage, or a warm cache)", _with(model, READ, _busy(read)))
        )
    if limit.resource is Resource.SINK:
        means.append(("a disk for OUT that does not wait", _with(model, SINK, _busy(model.costs[SINK]))))
    if limit.stage == INFER:
        infer = model.costs[INFER]
        half = StageCost(infer.wall_s / 2, infer.cpu_s / 2)
        means.append(("a model or precision twice as fast (see `vdali sweep`)", _with(model, INFER, half)))
    return means


def more_cpus(model: PipelineModel) -> int:
    """CPUs to add until something else is the limit: at least one; without a GPU to feed, at most as many again."""
    others = [limit.throughput for limit in model.limits() if limit.resource not in (Resource.CPU, Resource.LANES)]
    wanted = math.ceil(min(min(others, default=math.inf) * model.cpu_s - model.cpus, MOST_CPUS))
    return max(1, wanted if _on_gpu(model) else min(wanted, math.ceil(model.cpus)))


def verdict_of(model: PipelineModel, measured: float, advice: Sequence[Advice]) -> str:
    """One sentence: what holds the run back, the numbers that show it, what to change first and what that gives."""
    limit = model.limit
    bound = "lane-bound" if limit.resource is Resource.LANES else _BOUND[limit.stage]
    return f"{bound}: {_because(model, limit, measured)}; {_then(advice)}"


def engine_idle(model: PipelineModel, measured: float) -> float:
    """Share of time (0..1) in which the engine does nothing: of the GPU, or of the CPUs it could have."""
    if INFER not in model.costs:
        return 1.0
    return max(0.0, 1.0 - measured / model.alone(INFER))


def _because(model: PipelineModel, limit: Limit, measured: float) -> str:
    decode, engine = model.alone(DECODE), model.alone(INFER)
    rates = f"decode {decode:,.0f} images/s, engine {engine:,.0f}"
    idle = f"the engine idles {100 * engine_idle(model, measured):.0f} % of the time"
    cpus = f"{model.cpus:g} CPU{'s' if model.cpus != 1 else ''}"
    lanes = f"{model.lanes} lane{'s' if model.lanes != 1 else ''}"
    if limit.stage == DECODE and _on_gpu(model):
        return f"{rates}; {idle}"
    if limit.resource is Resource.CPU:
        shares = _shares(model, limit.stage)
        return f"{shares} of the CPU time of {cpus} ({rates}), which give {measured:,.0f} images/s"
    if limit.resource is Resource.DISK:
        wait = 1e3 * model.costs[READ].waiting_s
        return f"a read waits {wait:.3g} ms for its bytes, so {lanes} give {measured:,.0f} images/s ({rates}; {idle})"
    if limit.resource is Resource.LANES:
        use = "use" if model.lanes != 1 else "uses"
        load = 100 * _cpu_load(model)
        return f"{lanes} {use} {load:.0f} % of {cpus}: {measured:,.0f} images/s ({rates})"
    if limit.resource is Resource.GPU:
        return f"{rates}; the GPU computes {100 - 100 * engine_idle(model, measured):.0f} % of the time"
    cost = 1e3 * model.costs[limit.stage].wall_s
    return f"{limit.stage} takes {cost:.3g} ms an image, one at a time: {measured:,.0f} images/s ({rates}; {idle})"


def _shares(model: PipelineModel, first: str) -> str:
    """``decode takes 62 % and the engine 31 %``."""
    second = INFER if first != INFER else DECODE
    names = {INFER: "the engine"}
    share, other = 100 * model.cpu_share(first), 100 * model.cpu_share(second)
    return f"{names.get(first, first)} takes {share:.0f} % and {names.get(second, second)} {other:.0f} %"


def _then(advice: Sequence[Advice]) -> str:
    """The first change, others that promise the same to 5 %, and the rate to expect."""
    if not advice:
        return f"no change that was looked at promises more than {100 * (WORTH_IT - 1):.0f} %"
    first = advice[0]
    alike = [item.change for item in advice if abs(item.gain / first.gain - 1) <= WORTH_IT - 1]
    return f"with {', or '.join(alike)}, expect about {first.throughput:,.0f} images/s ({first.gain:.2g}x)"


def _on_gpu(model: PipelineModel) -> bool:
    return any(INFER in turn for turn in model.single)


def _cpu_load(model: PipelineModel) -> float:
    return min(1.0, model.throughput * model.cpu_s / model.cpus)


def _with(model: PipelineModel, stage: str, cost: StageCost) -> PipelineModel:
    return replace(model, costs={**model.costs, stage: cost})


def _without(model: PipelineModel, stage: str) -> PipelineModel:
    return replace(model, costs={name: cost for name, cost in model.costs.items() if name != stage})


def _busy(cost: StageCost) -> StageCost:
    """The same work without waiting."""
    return StageCost(cost.cpu_s, cost.cpu_s)
