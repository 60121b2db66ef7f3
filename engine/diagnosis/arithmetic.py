"""From what the stages cost alone to the arithmetic of this run: who shares what on a CPU, and with a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..cpu import cpu_allowance
from ..decoders.make import DecoderName
from ..device import HostDevice
from ..lanes import LanePlan
from .measure import Picked, on_cpu
from .model import DECODE, DOWNLOAD, INFER, LISTING, READ, ROWS, SINK, UPLOAD, PipelineModel, StageCost

_SLOW_READ_S = 0.5e-3

UNEXPLAINED = 0.9
"""Share of the expected rate below which a whole run is held back by what was not measured alone."""

LEAST_KERNELS = 0.05
"""Share of the engine's time alone that is not its copies, at least."""


def model_of(costs: Mapping[str, StageCost], picked: Picked, plan: LanePlan) -> PipelineModel:
    """Arithmetic of a run of ``plan`` whose stages cost ``costs`` (both copies among them where a GPU infers)."""
    read = picked.first_read if is_cold(picked, costs[READ]) else costs[READ]
    costs = {**costs, READ: read, ROWS: on_cpu(costs[ROWS]), DECODE: on_cpu(costs[DECODE])}
    if plan.device == HostDevice.name:
        return _on_host({**costs, INFER: on_cpu(costs[INFER])}, plan)
    return _on_gpu(costs, plan)


def _on_host(costs: Mapping[str, StageCost], plan: LanePlan) -> PipelineModel:
    """Lanes read, decode and infer in turn."""
    return PipelineModel(costs, plan.lanes, _cpus(), turns=((READ, DECODE, INFER, ROWS),))


def _on_gpu(costs: Mapping[str, StageCost], plan: LanePlan) -> PipelineModel:
    """Threads of the host read (and decode) while the GPU copies in, infers and copies out, each on its own stream.

    The engine alone was given batches of the host, so the copies are part of its time and are taken out of it, save
    for a rest: no kernel takes no time, whatever the copies took when they were measured. Where
    the GPU decodes, pixels are not copied in, and decoding was not measured alone.
    """
    infer, up, down = costs[INFER], costs[UPLOAD], costs[DOWNLOAD]
    costs = {
        **costs,
        INFER: replace(infer, wall_s=max(LEAST_KERNELS * infer.wall_s, infer.wall_s - up.wall_s - down.wall_s)),
    }
    if decodes_on_gpu(plan):
        costs = {stage: cost for stage, cost in costs.items() if stage not in (DECODE, UPLOAD)}
    return PipelineModel(
        costs,
        plan.lanes * plan.threads,
        _cpus(),
        turns=((READ, DECODE), (ROWS,)),
        single=((LISTING, SINK), (INFER,), (UPLOAD,), (DOWNLOAD,)),
        depth=plan.depth,
    )


def with_gpu_decode(model: PipelineModel, throughput: float) -> PipelineModel:
    """``model`` with decoding on the GPU as what the whole run's ``throughput`` shows where nothing else explains it.

    Where the run is as fast as the other stages allow, decoding is no slower than they.
    """
    rate = throughput if throughput < UNEXPLAINED * model.throughput else model.throughput
    costs = {**model.costs, DECODE: StageCost(1 / rate, 0.0)}
    return replace(model, costs=costs, turns=((READ,), (ROWS,)), single=(*model.single, (DECODE,)))


def decodes_on_gpu(plan: LanePlan) -> bool:
    return plan.device != HostDevice.name and plan.decoder.startswith(DecoderName.DALI.value)


def is_cold(picked: Picked, again: StageCost) -> bool:
    """Whether the first reading waited for what the second one found in the page cache.

    A disk may wait in a few reads for many (readahead); without a disk's word the typical read has to be slow.
    """
    slow_s = 2 * again.wall_s + _SLOW_READ_S
    from_disk = (picked.disk_share or 0.0) > 0.5 and picked.first_read.wall_s > slow_s
    return from_disk or picked.median_read_s > slow_s


def _cpus() -> float:
    allowance = cpu_allowance()
    return min(allowance.affinity, allowance.quota or allowance.affinity)
