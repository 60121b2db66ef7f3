"""One moment after which nothing waits any longer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class Deadline:
    """A moment ``seconds`` from now."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left; raises TimeoutError when there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        return left

    def leaves(self, seconds: float) -> bool:
        """Whether more than so many seconds are left."""
        return self._end - time.monotonic() > seconds

    def call(self, function: Callable[[], Result]) -> Result:
        """Result of a function that knows no time limit; raises what it raises, or TimeoutError.

        It runs on a thread of its own, which is left to itself when the time is up.
        """
        answers: queue.SimpleQueue[tuple[Result | None, Exception | None]] = queue.SimpleQueue()

        def work() -> None:
            try:
                answers.put((function(), None))
            except Exception as error:  # it is raised again where it belongs
                answers.put((None, error))

        threading.Thread(target=work, daemon=True, name="vdali-deadline").start()
        try:
            result, error = answers.get(timeout=self.left())
        except queue.Empty:
            raise TimeoutError("the deadline has passed") from None
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # without an error it is the function's
