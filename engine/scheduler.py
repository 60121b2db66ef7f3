"""Keeps several batches in flight on the streams of a few lanes and hands results back in input order.

The scheduler knows neither CUDA nor a backend: a lane brings its streams, its stages and its slots. Stages on
different streams are tied by events, so decode, compute and output overlap where they have streams of their own, and
take turns where one stream (a CPU lane) serves all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from .device import Stream
from .slots import Lease, Slot
from .stages import Lane, StageTime, Step, steps_of


@dataclass(slots=True)
class Ticket:
    """One batch in flight: its place in the input, its lane, what it is by now, or what went wrong."""

    number: int
    lane: int
    value: Any
    error: BaseException | None = None


class TicketQueue(Protocol):
    """Where finished tickets wait for the thread that runs the scheduler."""

    def put(self, ticket: Ticket) -> None: ...

    def get(self) -> Ticket: ...

    def empty(self) -> bool: ...


class Scheduler:
    """Runs batches over lanes.

    ``depth`` is the number of batches in flight per lane; with 2, a lane finds its next batch waiting. A depth beyond
    the lane's slots lets a batch begin as soon as the buffer it needs is free, before the last user of its slot is
    finished. ``max_ahead`` bounds how many batches may be unfinished or waiting for an earlier one, and with it the
    memory. ``finished`` stands in for the queue of a real machine where time is simulated.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        *,
        depth: int = 2,
        max_ahead: int | None = None,
        finished: TicketQueue | None = None,
    ) -> None:
        self._lanes = lanes
        self._steps = [steps_of(lane) for lane in lanes]
        self._depth = depth
        self._free = [depth] * len(lanes)
        self._turns = [0] * len(lanes)
        self._max_ahead = max_ahead if max_ahead is not None else 4 * depth * len(lanes)
        self._finished: TicketQueue = finished or SimpleQueue[Ticket]()
        self._stopped = False
        self._closed = False

    def run(self, batches: Iterable[Any]) -> Generator[Any]:
        """Results in the order of ``batches``.

        An exception that a stage raised is raised here when its batch's turn comes, after every earlier
        result. Closing the generator drops what has not begun.
        """
        waiting: dict[int, Ticket] = {}
        submitted = yielded = 0
        try:
            for batch in batches:
                while self._is_full(submitted - yielded):
                    self._collect(waiting)
                    while yielded in waiting:
                        yield _result(waiting.pop(yielded))
                        yielded += 1
                self._submit(Ticket(submitted, self._freest_lane(), batch))
                submitted += 1
            while yielded < submitted:
                while yielded not in waiting:
                    self._collect(waiting)
                yield _result(waiting.pop(yielded))
                yielded += 1
        finally:
            self._drain()

    def close(self) -> None:
        """Let running work end, then close the streams and give back the slots' memory and what else the lanes hold.

        What a broken device holds goes with the process: it would refuse, and hide what broke it.
        """
        if self._closed:
            return
        self._stopped = self._closed = True
        is_whole = self._settle()
        if is_whole:
            _call(close for lane in self._lanes for close in lane.closes)
        _call(stream.close for stream in self._streams())
        if is_whole:
            _call(slot.close for lane in self._lanes for slot in lane.slots)

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

    def _submit(self, ticket: Ticket) -> None:
        self._free[ticket.lane] -= 1
        slot, place = self._next_slot(ticket.lane)
        lease = Lease(slot.buffers if slot else {}, slot=place)
        steps = self._steps[ticket.lane]
        before: Stream | None = None
        for step in steps:
            if before is not None and before is not step.stream:
                step.stream.wait_for(before.record())
            if slot is not None and (step.takes or step.frees):
                self._submit_step(ticket, step, lease, slot)
            else:
                step.stream.submit(partial(self._run, ticket, step, lease))
            before = step.stream

    def _submit_step(self, ticket: Ticket, step: Step, lease: Lease, slot: Slot) -> None:
        """A step that waits for buffers, or that others wait for."""
        for name in step.takes:
            if name in slot.freed:
                step.stream.wait_for(slot.freed[name])
        freed = {name: step.stream.new_event() for name in step.frees}
        lease.freed.update(freed)
        step.stream.submit(partial(self._run, ticket, step, lease))
        for name, event in freed.items():
            slot.freed[name] = step.stream.record(event)

    def _next_slot(self, lane: int) -> tuple[Slot | None, int]:
        slots = self._lanes[lane].slots
        if not slots:
            return None, 0
        self._turns[lane] += 1
        place = self._turns[lane] % len(slots)
        return slots[place], place

    def _run(self, ticket: Ticket, step: Step, lease: Lease) -> None:
        for stage in step.stages:
            if ticket.error is None:
                ticket.error = step.stream.failure
            if self._stopped or ticket.error is not None:
                break
            try:
                ticket.value = stage.run(ticket.value, lease)
            except BaseException as error:  # the caller's thread raises it
                ticket.error = error
        if step is self._steps[ticket.lane][-1]:
            self._finished.put(ticket)

    def _collect(self, waiting: dict[int, Ticket]) -> None:
        ticket = self._finished.get()
        self._free[ticket.lane] += 1
        waiting[ticket.number] = ticket

    def _drain(self) -> None:
        """Wait until no stream works on a batch of this run, however far its submission came: an interrupt may fall
        between any two instructions, so the streams are asked, not a count of tickets.
        """
        if self._closed:
            return
        self._stopped = True
        self._settle()
        while not self._finished.empty():
            self._finished.get()
        self._free = [self._depth] * len(self._lanes)
        self._stopped = False

    def _settle(self) -> bool:
        """Wait until all that was submitted is done; False where a stream is broken."""
        whole = True
        for stream in self._streams():
            try:
                stream.synchronize()
            except Exception:  # it broke while a batch was on it, and that batch has told
                whole = False
        return whole

    def _streams(self) -> Iterable[Stream]:
        """Each stream once, although roles and lanes may share it."""
        return dict.fromkeys(stream for lane in self._lanes for stream in lane.streams.values())


def _call(functions: Iterable[Callable[[], None]]) -> None:
    for function in functions:
        function()


def _result(ticket: Ticket) -> Any:
    if ticket.error is not None:
        raise ticket.error
    return ticket.value
