"""Keeps several batches in flight on the streams of a few lanes and hands results back in input order.

The scheduler knows neither CUDA nor a backend: a lane brings its streams and its stages. A stage of
another role than the one before waits for an event, so decode, compute and output overlap where they have
streams of their own, and take turns where one stream (a CPU lane) serves all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from queue import Empty, SimpleQueue
from typing import Any

from .device import Stream


class Role(StrEnum):
    """What a stream is for."""

    IN = "in"
    COMPUTE = "compute"
    OUT = "out"


@dataclass(slots=True)
class StageTime:
    """Seconds spent in one stage of one lane: on the wall clock and on the CPU of the calling thread."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    calls: int = 0


@dataclass(slots=True)
class Stage:
    """One step of a batch. ``work`` takes the value of the step before and returns the next one."""

    name: str
    role: Role
    work: Callable[[Any], Any]
    time: StageTime = field(default_factory=StageTime)

    def run(self, value: Any) -> Any:
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return self.work(value)
        finally:
            self.time.wall_s += time.perf_counter() - wall
            self.time.cpu_s += time.thread_time() - cpu
            self.time.calls += 1


@dataclass(frozen=True, slots=True)
class Lane:
    """Streams by role and the stages that run on them; batches of one lane never overtake each other."""

    streams: Mapping[Role, Stream]
    stages: Sequence[Stage]


@dataclass(slots=True)
class _Ticket:
    """One batch in flight."""

    number: int
    lane: int
    value: Any
    error: BaseException | None = None


class Scheduler:
    """Runs batches over lanes.

    ``depth`` is the number of batches in flight per lane; with 2, a lane finds its next batch waiting.
    ``max_ahead`` bounds how many batches may be unfinished or waiting for an earlier one, and with it
    the memory.
    """

    def __init__(self, lanes: Sequence[Lane], *, depth: int = 2, max_ahead: int | None = None) -> None:
        self._lanes = lanes
        self._depth = depth
        self._free = [depth] * len(lanes)
        self._max_ahead = max_ahead if max_ahead is not None else 4 * depth * len(lanes)
        self._finished: SimpleQueue[_Ticket] = SimpleQueue()
        self._stopped = False

    def run(self, batches: Iterable[Any]) -> Generator[Any, None, None]:
        """Results in the order of ``batches``.

        An exception that a stage raised is raised here when its batch's turn comes, after every earlier
        result. Closing the generator drops what has not begun.
        """
        waiting: dict[int, _Ticket] = {}
        submitted = yielded = 0
        try:
            for batch in batches:
                while self._is_full(submitted - yielded):
                    self._collect(waiting)
                    while yielded in waiting:
                        yield _result(waiting.pop(yielded))
                        yielded += 1
                self._submit(_Ticket(submitted, self._freest_lane(), batch))
                submitted += 1
            while yielded < submitted:
                while yielded not in waiting:
                    self._collect(waiting)
                yield _result(waiting.pop(yielded))
                yielded += 1
        finally:
            self._drain()

    def close(self) -> None:
        """Let running work end, then close the streams."""
        self._stopped = True
        for lane in self._lanes:
            for stream in dict.fromkeys(lane.streams.values()):
                stream.close()

    def times(self) -> dict[str, StageTime]:
        """Time per stage name, summed over lanes."""
        total: dict[str, StageTime] = {}
        for lane in self._lanes:
            for stage in lane.stages:
                entry = total.setdefault(stage.name, StageTime())
                entry.wall_s += stage.time.wall_s
                entry.cpu_s += stage.time.cpu_s
                entry.calls += stage.time.calls
        return total

    def _is_full(self, ahead: int) -> bool:
        return ahead >= self._max_ahead or not any(self._free)

    def _freest_lane(self) -> int:
        return max(range(len(self._lanes)), key=self._free.__getitem__)

    def _submit(self, ticket: _Ticket) -> None:
        lane = self._lanes[ticket.lane]
        self._free[ticket.lane] -= 1
        stream: Stream | None = None
        for stage in lane.stages:
            following = lane.streams[stage.role]
            if stream is not None and following is not stream:
                following.wait_for(stream.record())
            stream = following
            stream.submit(lambda stage=stage: self._step(ticket, stage))  # type: ignore[misc]
        assert stream is not None, "a lane has at least one stage"
        stream.submit(lambda: self._finished.put(ticket))

    def _step(self, ticket: _Ticket, stage: Stage) -> None:
        if self._stopped or ticket.error is not None:
            return
        try:
            ticket.value = stage.run(ticket.value)
        except BaseException as error:  # the caller's thread raises it
            ticket.error = error

    def _collect(self, waiting: dict[int, _Ticket]) -> None:
        ticket = self._finished.get()
        self._free[ticket.lane] += 1
        waiting[ticket.number] = ticket

    def _drain(self) -> None:
        """Wait until no lane works on a batch of this run: its buffers may then be freed.

        Streams are asked, not counts: Ctrl-C may come between taking a ticket and counting it.
        """
        self._stopped = True
        for lane in self._lanes:
            for stream in dict.fromkeys(lane.streams.values()):
                stream.synchronize()
        with suppress(Empty):
            while True:
                self._finished.get_nowait()
        self._free = [self._depth] * len(self._lanes)
        self._stopped = False


def _result(ticket: _Ticket) -> Any:
    if ticket.error is not None:
        raise ticket.error
    return ticket.value
