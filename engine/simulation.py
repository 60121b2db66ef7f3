"""How fast a machine that is not here would be: the real scheduler over stages that only take time, and no real time.

A simulated stream is a thread whose work lasts as long as its stage's model says. Waiting for the next result moves a
clock that stands for real time, so that hours pass in milliseconds and the same seed gives the same numbers. Not
modelled: what stages cost each other where they share caches, memory or cores; say so by their ``mean_s``.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count

from .device import Event, Work
from .errors import UsageError
from .scheduler import Scheduler, Ticket
from .slots import Lease
from .stages import Lane, Role, Stage

DEEPEST = 8
"""Depths beyond which none is tried: a lane has five roles, so that more batches than that only wait."""

_AS_GOOD = 0.99
"""A shallower depth is preferred when it reaches this share of the best throughput: each costs a batch's memory."""


_NARROW, _WIDE = 1e-6, 100.0
"""Spreads, as shares of the mean, below which a stage is steady, and above which no run is long enough to show it."""


@dataclass(frozen=True, slots=True)
class StageModel:
    """What one batch costs in one stage: mean and standard deviation in seconds, gamma distributed.

    ``role`` names the streams on which it runs, None the thread that takes the results (the sink). ``lanes`` is how
    many batches can be in it at once; stages of one role share its streams.
    """

    mean_s: float
    spread_s: float = 0.0
    role: Role | None = None
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a run would do. ``idle_share`` (0..1, by role; ``sink`` for the thread that takes the results) is the time
    in which the streams of a role have nothing to do; ``bottleneck`` is the stage that has the least of it.
    ``best_depth`` is the smallest that is as fast as any.
    """

    throughput_samples_per_s: float
    idle_share: Mapping[str, float]
    bottleneck: str
    best_depth: int


def simulate(
    stages: Mapping[str, StageModel], *, depth: int, batches: int = 200, batch_size: int = 1, seed: int = 0
) -> Prediction:
    """Run ``batches`` through ``stages``, in their order, with ``depth`` batches in flight per lane.

    There are as many lanes as the widest stage has; narrower ones are shared. Raises UsageError for a model that
    makes no sense.
    """
    _check(stages, depth, batches)
    costs = {name: _costs(model, batches, random.Random(f"{seed} {name}")) for name, model in stages.items()}
    seconds = {tried: _seconds(stages, costs, tried, batches) for tried in {depth, *range(1, DEEPEST + 1)}}
    best = min(seconds.values())
    busy = {name: sum(costs[name]) / model.lanes for name, model in stages.items()}
    by_role: dict[str, float] = {}
    for name, model in stages.items():
        role = _name_of(model.role)
        by_role[role] = by_role.get(role, 0.0) + busy[name]
    return Prediction(
        throughput_samples_per_s=batches * batch_size / seconds[depth],
        idle_share={role: 1 - used / seconds[depth] for role, used in by_role.items()},
        bottleneck=max(stages, key=lambda name: (by_role[_name_of(stages[name].role)], busy[name])),
        best_depth=min(tried for tried in seconds if seconds[tried] * _AS_GOOD <= best),
    )


def _seconds(stages: Mapping[str, StageModel], costs: Mapping[str, list[float]], depth: int, batches: int) -> float:
    """Length of a run from its first batch to the sink's last."""
    time = VirtualTime()
    lanes = _lanes(time, stages, costs)
    scheduler = Scheduler(lanes, depth=depth, finished=VirtualTicketQueue(time))
    for number in scheduler.run(range(batches)):
        time.spend(sum(costs[name][number] for name, model in stages.items() if model.role is None))
    return time.now_s


def _lanes(time: VirtualTime, stages: Mapping[str, StageModel], costs: Mapping[str, list[float]]) -> list[Lane]:
    streams: dict[Role, list[VirtualStream]] = {}
    for model in stages.values():
        if model.role is not None and model.role not in streams:
            streams[model.role] = [VirtualStream(time, f"{model.role}-{number}") for number in range(model.lanes)]
    lanes = []
    for number in range(max(map(len, streams.values()))):
        own = {role: shared[number % len(shared)] for role, shared in streams.items()}
        steps = [
            Stage(name, model.role, partial(_work, own[model.role], costs[name]))
            for name, model in stages.items()
            if model.role is not None
        ]
        lanes.append(Lane(own, steps))
    return lanes


def _work(stream: VirtualStream, costs: list[float], number: int, lease: Lease) -> int:
    del lease  # nothing here uses memory
    stream.spend(costs[number])
    return number


def _costs(model: StageModel, batches: int, rng: random.Random) -> list[float]:
    """Seconds of each batch: the same for every depth, so that depths compare by nothing else."""
    if model.spread_s <= _NARROW * model.mean_s:
        return [model.mean_s] * batches
    shape = (model.mean_s / model.spread_s) ** 2
    return [rng.gammavariate(shape, model.mean_s / shape) for _ in range(batches)]


def _name_of(role: Role | None) -> str:
    return "sink" if role is None else role.value


def _check(stages: Mapping[str, StageModel], depth: int, batches: int) -> None:
    if depth < 1 or batches < 1:
        raise UsageError(f"A simulation needs depth >= 1 and batches >= 1, got {depth} and {batches}.")
    if all(model.role is None for model in stages.values()):
        raise UsageError("A simulation needs a stage that runs on a stream. Give one a role.")
    lanes: dict[Role | None, int] = {None: 1}
    for name, model in stages.items():
        if not 0 <= model.spread_s <= _WIDE * model.mean_s or model.lanes < 1:
            raise UsageError(
                f"Stage '{name}' has {model}. mean_s is >= 0, spread_s up to {_WIDE:g} x mean_s, lanes >= 1."
            )
        if lanes.setdefault(model.role, model.lanes) != model.lanes:
            raise UsageError(
                f"Stage '{name}' has {model.lanes} lanes, but others of role {_name_of(model.role)}, whose streams it "
                f"shares, have {lanes[model.role]}. Give all the same."
            )
    if not any(model.mean_s for model in stages.values()):
        raise UsageError("No stage takes any time, so a throughput would be infinite. Give one a mean_s > 0.")


class VirtualTime:
    """A clock that moves when somebody waits, and what is to happen when."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.playing: VirtualStream | None = None
        self._agenda: list[tuple[float, int, Work]] = []
        self._number = count()

    def at(self, time_s: float, work: Work) -> None:
        heapq.heappush(self._agenda, (time_s, next(self._number), work))

    def advance(self) -> None:
        """To the next thing on the agenda. Raises RuntimeError where there is none: then all wait for each other."""
        if not self._agenda:
            raise RuntimeError(
                "Deadlock in a simulation: all streams wait. This is a fault of vdali: please report it."
            )
        self.now_s, _, work = heapq.heappop(self._agenda)
        work()

    def spend(self, seconds: float) -> None:
        """The calling thread is busy for so long; all others go on."""
        until = self.now_s + seconds
        while self._agenda and self._agenda[0][0] <= until:
            self.advance()
        self.now_s = until


class VirtualEvent:
    """Point in a virtual stream."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.is_passed = False
        self.waiting: list[Work] = []

    def wait(self) -> None:
        while not self.is_passed:
            self._time.advance()

    def mark(self) -> None:
        self.is_passed = True
        for resume in self.waiting:
            resume()
        self.waiting.clear()


class VirtualStream:
    """Thread of virtual time; its work calls ``spend`` for as long as it takes."""

    is_asynchronous = False
    failure: BaseException | None = None

    def __init__(self, time: VirtualTime, name: str) -> None:
        self.name = name
        self.busy_until_s = 0.0
        self._time = time
        self._entries: deque[Work | VirtualEvent] = deque()
        self._blocked = False

    def spend(self, seconds: float) -> None:
        self.busy_until_s += seconds

    def submit(self, work: Work) -> None:
        self._entries.append(work)
        self._go_on()

    def new_event(self) -> VirtualEvent:
        return VirtualEvent(self._time)

    def record(self, event: Event | None = None) -> Event:
        event = event or self.new_event()
        self.submit(event.mark)
        return event

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, VirtualEvent), "virtual streams wait for virtual events"
        self._entries.append(event)
        self._go_on()

    def synchronize(self) -> None:
        self.record().wait()

    def close(self) -> None:
        self.synchronize()

    def _go_on(self) -> None:
        """Run what can run now; what comes after the time that was spent follows at that time."""
        while self._entries and not self._blocked and self.busy_until_s <= self._time.now_s:
            entry = self._entries.popleft()
            if isinstance(entry, VirtualEvent):
                self._block(entry)
                continue
            self.busy_until_s = self._time.now_s
            before, self._time.playing = self._time.playing, self
            entry()
            self._time.playing = before
            if self.busy_until_s > self._time.now_s:
                self._time.at(self.busy_until_s, self._go_on)

    def _block(self, event: VirtualEvent) -> None:
        if not event.is_passed:
            self._blocked = True
            event.waiting.append(self._resume)

    def _resume(self) -> None:
        self._blocked = False
        self._go_on()


class VirtualTicketQueue:
    """Finished tickets of virtual time: one put by work that spends time is there when that time is over."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._tickets: deque[Ticket] = deque()

    def put(self, ticket: Ticket) -> None:
        assert self._time.playing is not None, "tickets are put by work"
        self._time.at(self._time.playing.busy_until_s, partial(self._tickets.append, ticket))

    def get(self) -> Ticket:
        while not self._tickets:
            self._time.advance()
        return self._tickets.popleft()

    def empty(self) -> bool:
        return not self._tickets
