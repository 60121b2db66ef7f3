"""Queues of a device that runs no further than somebody waits for."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable


class Record:
    """A point in a lazy queue."""

    __slots__ = ("done", "queue")

    def __init__(self, queue: int) -> None:
        self.queue = queue
        self.done = False


class LazyQueues:
    """Queues of work that run no further than somebody waits for, or than ``run_some`` happens to take them."""

    def __init__(self) -> None:
        self._queues: list[deque[Callable[[], object] | Record | tuple[Record]]] = []

    def new(self) -> int:
        self._queues.append(deque())
        return len(self._queues) - 1

    def add(self, queue: int, work: Callable[[], object]) -> None:
        self._queues[queue].append(work)

    def record(self, queue: int) -> Record:
        record = Record(queue)
        self._queues[queue].append(record)
        return record

    def wait(self, queue: int, record: Record) -> None:
        self._queues[queue].append((record,))

    def finish(self, record: Record) -> None:
        while not record.done:
            self._run_first(record.queue)

    def finish_all_of(self, queue: int) -> None:
        while self._queues[queue]:
            self._run_first(queue)

    def run_some(self, rng: random.Random) -> None:
        """One entry of any queue, unless that has to wait."""
        busy = [number for number, queue in enumerate(self._queues) if queue]
        if busy:
            queue = rng.choice(busy)
            first = self._queues[queue][0]
            if not isinstance(first, tuple) or first[0].done:
                self._run_first(queue)

    def _run_first(self, queue: int) -> None:
        first = self._queues[queue].popleft()
        if isinstance(first, Record):
            first.done = True
        elif isinstance(first, tuple):
            self.finish(first[0])
        else:
            first()
