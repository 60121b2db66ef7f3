"""The system that a scenario loads: lanes with a decoder each around one engine, fed from one queue.

A lane takes what is waiting, at most so many images, decodes and infers it at once, and tells that it is done.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...engine.backends.interface import Engine
from ...engine.batch import Encoded
from ...engine.decoders.interface import Decoder
from ...engine.errors import VdaliError
from ...engine.pipeline import decode, infer

Done = Callable[[Sequence[int]], None]


@dataclass(frozen=True, slots=True)
class Query:
    """One image that is asked for: ``token`` names the query, ``picture`` is an index into the pictures."""

    token: int
    picture: int


class LanePool:
    """Lanes that answer queries for ``pictures``, encoded images in memory, from their bytes to their rows.

    A lane takes at most ``most`` of what is waiting, and leaves the other idle lanes their share. ``decoders`` has one
    for each lane; they and the engine belong to the caller.
    """

    def __init__(self, engine: Engine, decoders: Sequence[Decoder], pictures: Sequence[bytes], *, most: int) -> None:
        self._engine = engine
        self._pictures = pictures
        self._most = most
        self._waiting: deque[tuple[Query, Done]] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._closed = False
        self._is_idling = False
        self._problems: list[str] = []
        height, width = engine.spec.preprocess.size
        self._lanes = [
            threading.Thread(
                target=self._serve,
                args=(decoder, np.empty((most, height, width, 3), np.uint8)),
                name=f"scenario-lane-{number}",
                daemon=True,
            )
            for number, decoder in enumerate(decoders)
        ]
        for lane in self._lanes:
            lane.start()

    def submit(self, queries: Sequence[Query], done: Done) -> None:
        """Queue ``queries``; ``done`` is called on a lane with the tokens of each batch. Never blocks, never raises."""
        with self._changed:
            self._waiting.extend((query, done) for query in queries)
            self._changed.notify(len(queries))

    def pass_over(self, count: int) -> float:
        """Infer ``count`` pictures as fast as it goes and return the rate in samples/s."""
        left, ended = [count], threading.Event()

        def done(tokens: Sequence[int]) -> None:
            with self._changed:
                left[0] -= len(tokens)
                if not left[0]:
                    ended.set()

        started_s = time.perf_counter()
        self.submit([Query(number, number % len(self._pictures)) for number in range(count)], done)
        ended.wait()
        self.check()
        return count / (time.perf_counter() - started_s)

    def idle(self) -> None:
        """Answer all that is asked from now on without working at it: it no longer counts."""
        self._is_idling = True

    def check(self) -> None:
        """Raise VdaliError where a query did not become a row: its speed would count for nothing."""
        with self._changed:
            if self._problems:
                raise VdaliError(
                    f"{len(self._problems):,} of the queries did not become a row, the first: {self._problems[0]}. "
                    "Leave such images out, or run `vdali doctor`."
                )

    def close(self) -> None:
        """Let the lanes end what they work on; what is still waiting is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for lane in self._lanes:
            lane.join()

    def _serve(self, decoder: Decoder, buffer: NDArray[np.uint8]) -> None:
        while work := self._next():
            try:
                if not self._is_idling:
                    self._answer(decoder, buffer, [query for query, _ in work])
            except BaseException as error:  # the load generator would wait for ever for queries that died with a lane
                self._fail(f"{type(error).__name__}: {error}")
            by_done: dict[Done, list[int]] = {}
            for query, done in work:
                by_done.setdefault(done, []).append(query.token)
            for done, tokens in by_done.items():
                done(tokens)

    def _next(self) -> list[tuple[Query, Done]]:
        """This lane's share of what is waiting; nothing when the pool was closed."""
        with self._changed:
            self._idle += 1
            while not self._waiting and not self._closed:
                self._changed.wait()
            share = -(-len(self._waiting) // self._idle)
            self._idle -= 1
            if self._closed:
                return []
            return [self._waiting.popleft() for _ in range(min(self._most, share))]

    def _answer(self, decoder: Decoder, buffer: NDArray[np.uint8], queries: Sequence[Query]) -> None:
        samples = [Encoded(str(query.picture), self._pictures[query.picture]) for query in queries]
        outcome = infer(self._engine, decode(decoder, (samples, []), buffer))
        for failure in outcome.failures:
            self._fail(failure.message)

    def _fail(self, message: str) -> None:
        with self._changed:
            self._problems.append(message)
