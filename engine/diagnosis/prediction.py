"""What another setting would give, from the simulated machine: the real scheduler over the costs of each stage."""

from __future__ import annotations

from ..simulation import StageModel, simulate
from ..stages import Role
from .model import DECODE, DOWNLOAD, INFER, LISTING, SINK, UPLOAD, PipelineModel, Resource

BATCHES_PER_LANE = 50
"""Batches that a lane goes through: filling and emptying it then weigh 2 %."""

_ROLES = {DECODE: Role.IN, UPLOAD: Role.IN, INFER: Role.COMPUTE, DOWNLOAD: Role.OUT}


def predicted_throughput(model: PipelineModel, micro_batch: int) -> float:
    """Samples per second of a simulated run.

    The simulation knows no CPUs: where those are the limit, the time that stages spend on them is stretched to what
    the CPUs have to give.
    """
    stretch = _stretch(model)
    stages = {}
    for name, cost in model.costs.items():
        role, lanes = _place(model, name)
        seconds = cost.waiting_s + stretch * (cost.wall_s - cost.waiting_s)
        stages[name] = StageModel(micro_batch * seconds, role=role, lanes=lanes)
    batches = BATCHES_PER_LANE * max(4, model.lanes)
    found = simulate(stages, depth=model.depth, batches=batches, batch_size=micro_batch)
    return found.throughput_samples_per_s


def _place(model: PipelineModel, stage: str) -> tuple[Role | None, int]:
    """Streams that a stage runs on, and how many there are."""
    if stage in (LISTING, SINK):
        return None, 1
    if stage in _ROLES and any(stage in turn for turn in model.single):
        return _ROLES[stage], 1
    return (Role.READ if stage in model.turns[0] else Role.FINISH), model.lanes


def _stretch(model: PipelineModel) -> float:
    """How much longer stages on the CPU take because lanes have to share the CPUs, at least 1."""
    limits = model.limits()
    cpu = next(limit for limit in limits if limit.resource is Resource.CPU)
    if any(limit.throughput < cpu.throughput for limit in limits):
        return 1.0
    factors = []
    for turn in model.turns:
        costs = [model.costs[stage] for stage in turn if stage in model.costs]
        waiting_s = sum(cost.waiting_s for cost in costs)
        busy_s = sum(cost.wall_s for cost in costs) - waiting_s
        if busy_s > 0:
            factors.append((model.lanes / cpu.throughput - waiting_s) / busy_s)
    return max(1.0, min(factors, default=1.0))
