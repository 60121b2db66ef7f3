"""How far a plan build is, from TensorRT's nested phases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """A moment of a build: innermost phase, done fraction 0..1 (never falls), seconds so far and those of last time."""

    phase: str
    fraction: float
    elapsed_s: float
    expected_s: float | None = None

    def __str__(self) -> str:
        last = f", took {self.expected_s:.1f} s last time" if self.expected_s is not None else ""
        return f"building plan: {self.fraction:.0%}, {self.elapsed_s:.1f} s{last} ({self.phase})"


OnProgress = Callable[[PlanProgress], object]


@dataclass(slots=True)
class _Phase:
    name: str
    parent: str | None
    steps: int
    done: int = 0


class PhaseTracker:
    """Turns phase events into PlanProgress, one for each new phase and each new percent.

    An exception of the receiver (KeyboardInterrupt too) is kept in ``error`` and cancels the build: raised inside a
    callback, TensorRT would only print it.
    """

    def __init__(self, receiver: OnProgress, expected_s: float | None = None) -> None:
        self.error: BaseException | None = None
        self._receiver = receiver
        self._expected_s = expected_s
        self._started = time.perf_counter()
        self._phases: dict[str, _Phase] = {}
        self._fraction = 0.0
        self._last: tuple[str, int] | None = None
        self._lock = threading.Lock()

    def start(self, name: str, parent: str | None, steps: int) -> None:
        with self._lock:
            self._phases[name] = _Phase(name, parent, max(steps, 1))
            self._tell(name)

    def step(self, name: str, index: int) -> bool:
        """Note that step ``index`` is done; False asks TensorRT to cancel."""
        with self._lock:
            if phase := self._phases.get(name):
                phase.done = max(phase.done, index + 1)
                self._tell(name)
            return self.error is None

    def finish(self, name: str) -> None:
        with self._lock:
            self._phases.pop(name, None)
            self._tell(name)

    def _tell(self, name: str) -> None:
        root = next((phase for phase in self._phases.values() if phase.parent is None), None)
        self._fraction = max(self._fraction, self._done(root) if root is not None else 1.0)
        state = (name, int(100 * self._fraction))
        if state == self._last or self.error is not None:
            return
        self._last = state
        elapsed = time.perf_counter() - self._started
        try:
            self._receiver(PlanProgress(name, self._fraction, elapsed, self._expected_s))
        except BaseException as error:  # raised again once TensorRT has returned
            self.error = error

    def _done(self, phase: _Phase) -> float:
        """Finished steps, plus what the phases inside the running step have done of it."""
        inside = [self._done(child) for child in self._phases.values() if child.parent == phase.name]
        return min((phase.done + (max(inside) if inside else 0.0)) / phase.steps, 1.0)


def progress_monitor(trt: Any, tracker: PhaseTracker) -> Any:
    """``trt.IProgressMonitor`` that feeds the tracker; it must outlive the build."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]  # the base is known at run time only
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            tracker.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return tracker.step(phase_name, step)

        def phase_finish(self, phase_name: str) -> None:
            tracker.finish(phase_name)

    return Monitor()
