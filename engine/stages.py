"""What a lane is: stages of a batch on streams by role, and where the streams need events between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .device import Stream
from .slots import Lease, Slot


class Role(StrEnum):
    """What a stream is for: three roles on the device, and the host's work before and after."""

    READ = "read"
    IN = "in"
    COMPUTE = "compute"
    OUT = "out"
    FINISH = "finish"


@dataclass(slots=True)
class StageTime:
    """Seconds spent in one stage of one lane: on the wall clock and on the CPU of the calling thread."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    calls: int = 0


@dataclass(slots=True)
class Stage:
    """One step of a batch.

    ``work`` takes the value of the step before and the batch's lease, and returns the next value. It is the first to
    use the buffers that it ``takes`` and the last to use those that it ``frees``. On an asynchronous stream it only
    starts what then happens on the device.
    """

    name: str
    role: Role
    work: Callable[[Any, Lease], Any]
    takes: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()
    time: StageTime = field(default_factory=StageTime)

    def run(self, value: Any, lease: Lease) -> Any:
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return self.work(value, lease)
        finally:
            self.time.wall_s += time.perf_counter() - wall
            self.time.cpu_s += time.thread_time() - cpu
            self.time.calls += 1


@dataclass(frozen=True, slots=True)
class Lane:
    """Streams by role, the stages that run on them, and the slots whose buffers they use.

    Batches of one lane never overtake each other and use its slots in turn. Lanes may share streams. The last stage
    runs on a stream of the host, so that a batch is finished only when the device has finished it too; its result
    must not refer to a slot's buffers. ``closes`` give back what else the stages use, in this order, when nothing runs
    any more and the streams are still there.
    """

    streams: Mapping[Role, Stream]
    stages: Sequence[Stage]
    slots: Sequence[Slot] = ()
    closes: Sequence[Callable[[], None]] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """Stages that run on one stream without a break, and the buffers that need events before and after."""

    stream: Stream
    stages: tuple[Stage, ...]
    takes: tuple[str, ...]
    frees: tuple[str, ...]


def steps_of(lane: Lane) -> list[Step]:
    """The stages of a lane in runs of one stream, cut where an event is needed between them."""
    if not lane.stages:
        raise ValueError("A lane has no stage. Give it at least one.")
    if lane.streams[lane.stages[-1].role].is_asynchronous:
        raise ValueError(
            f"The last stage of a lane, '{lane.stages[-1].name}', runs on an asynchronous stream, so nothing "
            "would tell when its batch is finished. End with a stage on a stream of the host."
        )
    crossing = _crossing_buffers(lane)
    steps: list[Step] = []
    for stage in lane.stages:
        stream = lane.streams[stage.role]
        takes = tuple(name for name in stage.takes if name in crossing)
        frees = tuple(name for name in stage.frees if name in crossing)
        last = steps[-1] if steps else None
        if last is not None and last.stream is stream and not takes and not last.frees:
            steps[-1] = Step(stream, (*last.stages, stage), last.takes, frees)
        else:
            steps.append(Step(stream, (stage,), takes, frees))
    return steps


def _crossing_buffers(lane: Lane) -> set[str]:
    """Buffers that one stream frees and another takes again: only these need events, the rest goes by the stream's
    order. Raises ValueError where a buffer of the slots is not taken once and then freed once.
    """
    taken_by: dict[str, Stream] = {}
    freed_by: dict[str, Stream] = {}
    for stage in lane.stages:
        for names, by in ((stage.takes, taken_by), (stage.frees, freed_by)):
            for name in names:
                if name in by or (by is freed_by and name not in taken_by):
                    raise ValueError(
                        f"Stage '{stage.name}' takes or frees the buffer '{name}' out of turn. Each buffer is taken "
                        "once and freed once, not before."
                    )
                by[name] = lane.streams[stage.role]
    for slot in lane.slots:
        if not slot.buffers.keys() == taken_by.keys() == freed_by.keys():
            raise ValueError(
                f"The slots have the buffers {sorted(slot.buffers)}, the stages take {sorted(taken_by)} and free "
                f"{sorted(freed_by)}. Name the same ones."
            )
    return {name for name, stream in taken_by.items() if freed_by[name] is not stream}
