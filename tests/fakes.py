"""A device that is not there: it does nothing before somebody waits for it, and knows what was ordered behind what."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from lazy_queues import LazyQueues, Record
from vdali.engine.errors import DeviceError
from vdali.engine.scheduler import Ticket

POISON = "poison"
Clock = tuple[int, ...]
"""How far each thread and queue is known to have come."""


class FakeBuffer:
    """Any content, and who wrote and read it when: ``written`` and ``read`` hold times on the clocks of threads."""

    def __init__(self) -> None:
        self.content: object = POISON
        self.written = (0, 0)
        self.read: dict[int, int] = {}
        self.released = False


class FakeEvent:
    """Point in a FakeStream; ``clock`` is what it is ordered behind."""

    def __init__(self, stream: FakeStream) -> None:
        self.stream = stream
        self.marked = False
        self.broken = False
        self.record: Record | None = None
        self.clock: Clock = ()
        self.host_clock: Clock = ()

    def mark(self) -> None:
        self.marked = True


class FakeStream:
    """Thread, and with ``is_asynchronous`` a queue of the device that the thread feeds.

    The thread is played by ``step``, an entry at a time.
    """

    def __init__(self, device: FakeDevice, name: str, *, is_asynchronous: bool) -> None:
        self.name = name
        self.is_asynchronous = is_asynchronous
        self.failure: BaseException | None = None
        self.thread = device.new_clock()
        self.queue = device.queues.new() if is_asynchronous else -1
        self.queue_clock = device.new_clock() if is_asynchronous else self.thread
        self._device = device
        self._submitted: Clock = ()
        self.entries: deque[tuple[Callable[[Any], bool], Any, Clock]] = deque()

    def submit(self, work: Callable[[], object]) -> None:
        self._add(self._work, work)

    def new_event(self) -> FakeEvent:
        self._device.may_interrupt()
        return FakeEvent(self)

    def record(self, event: FakeEvent | None = None) -> FakeEvent:
        event = event or FakeEvent(self)
        self._add(self._record, event)
        return event

    def wait_for(self, event: FakeEvent) -> None:
        if (self.name, event.stream.name) != self._device.forgets:
            self._add(self._wait, event)

    def synchronize(self) -> None:
        self._device.run_until(lambda: not self.entries)
        if self.is_asynchronous and not self._device.is_broken:
            self._device.queues.finish_all_of(self.queue)
        self._device.join(0, self._device.clocks[self.queue_clock])
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self._device.run_until(lambda: not self.entries)

    def record_now(self, event: FakeEvent) -> None:
        """What CUDA does at once when a launcher records an event."""
        device = self._device
        event.host_clock = device.clocks[self.thread]
        device.join(self.queue_clock, event.host_clock)
        event.clock = device.clocks[self.queue_clock]
        event.broken = device.is_broken
        if self.is_asynchronous:
            event.record = device.queues.record(self.queue)

    def step(self) -> bool:
        """Play the first entry; False where it has to wait."""
        play, subject, clock = self.entries[0]
        if clock is not self._submitted:  # the clock of the thread that submits changes rarely
            self._device.join(self.thread, clock)
            self._submitted = clock
        if not play(subject):
            return False
        self.entries.popleft()
        return True

    def _add(self, play: Callable[[Any], bool], subject: object) -> None:
        self._device.may_interrupt()
        self.entries.append((play, subject, self._device.clocks[self._device.running]))

    def _work(self, work: Callable[[], object]) -> bool:
        device = self._device
        before, device.running = device.running, self.thread
        try:
            work()
        finally:
            device.running = before
        return True

    def _record(self, event: FakeEvent) -> bool:
        if not event.marked:
            self.record_now(event)
            event.mark()
        return True

    def _wait(self, event: FakeEvent) -> bool:
        device = self._device
        if not event.marked:
            return False
        if event.broken or (device.is_broken and event.record is not None):
            self.failure = self.failure or device.error()
            return True
        if event.record is None or not self.is_asynchronous:
            if event.record is not None:
                device.queues.finish(event.record)
            device.join(self.thread, event.clock)
        else:
            device.join(self.thread, event.host_clock)
            device.queues.wait(self.queue, event.record)
            device.join(self.queue_clock, event.clock)
        return True


class FakeDevice:
    """Streams of host and device played by one thread, in an order that the seed chooses.

    It keeps a vector clock for each thread and each queue, and notes in ``violations`` every access to a buffer that
    is not ordered behind the last one in conflict with it, whether or not it went wrong this time. ``laziness`` is how
    rarely the device runs on its own. ``forgets`` (waiting stream, recording stream) is a kind of wait that it
    ignores; ``interrupt_after`` calls of the main thread KeyboardInterrupt is raised in it.
    """

    name = "fake"

    def __init__(self, seed: int = 0, *, laziness: float = 1.0, forgets: tuple[str, str] | None = None) -> None:
        self.queues = LazyQueues()
        self.clocks: list[Clock] = []
        self.running = self.new_clock()
        self.violations: list[str] = []
        self.forgets = forgets
        self.interrupt_after: int | None = None
        self.is_broken = False
        self.live = 0
        self._laziness = laziness
        self._rng = random.Random(seed)
        self._streams: list[FakeStream] = []

    def new_clock(self) -> int:
        """For one more thread or queue; all are made before the first work."""
        count = len(self.clocks) + 1
        self.clocks = [(0,) * count] * count
        return count - 1

    def join(self, clock: int, other: Clock) -> None:
        own = self.clocks[clock]
        if other is not own:
            self.clocks[clock] = tuple(map(max, own, other))

    def new_stream(self, name: str, *, is_asynchronous: bool = True) -> FakeStream:
        stream = FakeStream(self, name, is_asynchronous=is_asynchronous)
        self._streams.append(stream)
        return stream

    def allocate(self, shape: tuple[int, ...], dtype: object) -> FakeBuffer:
        self.live += 1
        return FakeBuffer()

    allocate_pinned = allocate

    def release(self, buffer: FakeBuffer) -> None:
        self.live -= 1
        self._access(0, (), (buffer,))
        buffer.released = True

    def copy(self, target: FakeBuffer, source: FakeBuffer, *, stream: FakeStream) -> None:
        def work() -> None:
            target.content = source.content

        self.launch(work, stream=stream, reads=(source,), writes=(target,))

    def close(self) -> None: ...

    def launch(
        self,
        work: Callable[[], object],
        *,
        stream: FakeStream,
        reads: Iterable[FakeBuffer] = (),
        writes: Iterable[FakeBuffer] = (),
    ) -> None:
        """Start ``work`` on the device. Raises DeviceError once that is broken."""
        if self.is_broken:
            raise self.error()
        self.join(stream.queue_clock, self.clocks[stream.thread])
        self._access(stream.queue_clock, reads, writes)
        self.queues.add(stream.queue, work)

    def touch(self, *, reads: Iterable[FakeBuffer] = (), writes: Iterable[FakeBuffer] = ()) -> None:
        """Note an access by the thread that runs."""
        self._access(self.running, reads, writes)

    def error(self) -> DeviceError:
        return DeviceError("The fake device is broken. Take another.")

    def may_interrupt(self) -> None:
        if self.interrupt_after is not None and self.running == 0:
            self.interrupt_after -= 1
            if self.interrupt_after < 0:
                self.interrupt_after = None
                raise KeyboardInterrupt

    def run_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._step()

    def _step(self) -> None:
        """One entry of any stream that can go on."""
        if self._rng.random() > self._laziness and not self.is_broken:
            self.queues.run_some(self._rng)
        busy = [stream for stream in self._streams if stream.entries]
        first = int(self._rng.random() * len(busy))
        for stream in busy[first:] + busy[:first]:
            if stream.step():
                return
        raise AssertionError(f"deadlock: {[stream.name for stream in busy]} wait for what never comes")

    def _access(self, clock: int, reads: Iterable[FakeBuffer], writes: Iterable[FakeBuffer]) -> None:
        seen = list(self.clocks[clock])
        seen[clock] += 1
        self.clocks[clock] = tuple(seen)
        for buffer in reads:
            self._check(buffer, "read before it is written", seen, (buffer.written,))
            buffer.read[clock] = seen[clock]
        for buffer in writes:
            self._check(buffer, "written before it is written", seen, (buffer.written,))
            self._check(buffer, "written before it is read", seen, buffer.read.items())
            buffer.written = (clock, seen[clock])
            buffer.read.clear()

    def _check(self, buffer: FakeBuffer, what: str, seen: list[int], earlier: Iterable[tuple[int, int]]) -> None:
        if buffer.released:
            self.violations.append("used after its release")
        if any(seen[clock] < time for clock, time in earlier):
            self.violations.append(what)


class FakeTicketQueue:
    """Queue whose reader plays the device's threads while it waits."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._tickets: deque[tuple[Ticket, Clock]] = deque()
        self.received = 0

    def put(self, ticket: Ticket) -> None:
        self.received += 1
        self._tickets.append((ticket, self._device.clocks[self._device.running]))

    def get(self) -> Ticket:
        self._device.may_interrupt()
        self._device.run_until(lambda: bool(self._tickets))
        ticket, clock = self._tickets.popleft()
        self._device.join(0, clock)
        return ticket

    def empty(self) -> bool:
        return not self._tickets
